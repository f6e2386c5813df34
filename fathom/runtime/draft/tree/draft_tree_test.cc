#include "fathom/runtime/draft/tree/draft_tree.h"

#include <cmath>

#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/spec/draft_tree/draft_tree.h"

namespace fathom {
namespace {

using Ids = std::vector<int32_t>;
using Ints = std::vector<int64_t>;

std::vector<TokenLogprob> guesses(const std::vector<std::pair<int32_t, double>>& best) {
  std::vector<TokenLogprob> out;
  for (const auto& [token, probability] : best)
    out.push_back({token, static_cast<float>(std::log(probability))});
  return out;
}

struct Kept {
  Ids tokens, parents;

  Kept(DraftTree& tree, int64_t most) { tree.keep(most, tokens, parents); }
};

// Three levels of two guesses each, whose joint probabilities are
// .6 .3 | .3 .12 .21 .03 | .24 .03 .105 .084
DraftTree example() {
  DraftTree tree({.tokens = 3, .branches = 2});
  tree.start(guesses({{10, .6}, {20, .3}}));
  EXPECT_EQ(Ids(tree.frontier().begin(), tree.frontier().end()), (Ids{0, 1}));
  tree.add_children(0, guesses({{11, .5}, {12, .2}}));
  tree.add_children(1, guesses({{21, .7}, {22, .1}}));
  tree.grow();
  EXPECT_EQ(Ids(tree.frontier().begin(), tree.frontier().end()), (Ids{2, 4}));
  tree.add_children(2, guesses({{13, .8}, {14, .1}}));
  tree.add_children(4, guesses({{23, .5}, {24, .4}}));
  tree.grow();
  return tree;
}

TEST(DraftTree, KeepsTheBestOfTheExampleOfThreeLevels) {
  DraftTree tree = example();

  const Kept four(tree, 4);
  EXPECT_EQ(four.tokens, (Ids{10, 20, 11, 13}));
  EXPECT_EQ(four.parents, (Ids{-1, -1, 0, 2}));

  const Kept all(tree, 64);
  EXPECT_EQ(all.tokens, (Ids{10, 20, 11, 12, 21, 22, 13, 14, 23, 24}));
  EXPECT_EQ(all.parents, (Ids{-1, -1, 0, 0, 1, 1, 2, 2, 4, 4}));

  const Kept one(tree, 1);
  EXPECT_EQ(one.tokens, Ids{10});
  EXPECT_EQ(one.parents, Ids{-1});
}

TEST(DraftTree, OfEqualNodesTheFirstOnesAreKept) {
  DraftTree tree({.tokens = 2, .branches = 3});
  tree.start(guesses({{1, .25}, {2, .25}, {3, .25}}));
  for (const int32_t node : {0, 1, 2})
    tree.add_children(node, guesses({{4, 1}, {5, 1}, {6, 1}}));
  tree.grow();
  EXPECT_EQ(Ids(tree.frontier().begin(), tree.frontier().end()), (Ids{3, 4, 5}));

  const Kept five(tree, 5);

  EXPECT_EQ(five.tokens, (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(five.parents, (Ids{-1, -1, -1, 0, 0}));
}

TEST(DraftTree, BeginsAgainAndGrowsFromWhatThereIs) {
  DraftTree tree = example();

  tree.start(guesses({{7, 1}}));
  tree.add_children(0, {});
  tree.grow();

  EXPECT_TRUE(tree.frontier().empty());
  const Kept kept(tree, 8);
  EXPECT_EQ(kept.tokens, Ids{7});
  EXPECT_EQ(kept.parents, Ids{-1});
  tree.start({});
  EXPECT_TRUE(Kept(tree, 8).tokens.empty());
}

TEST(DraftTree, NodesFollowWhatTheProposerHadBefore) {
  DraftTree tree = example();
  Ids tokens{5};
  Ids parents{-1};

  tree.keep(3, tokens, parents);

  EXPECT_EQ(tokens, (Ids{5, 10, 20, 11}));
  EXPECT_EQ(parents, (Ids{-1, -1, -1, 1}));
}

// The tree that build_tree_kernel_efficient makes of the same candidates: who follows whom, where
// each node stands and what it sees.
TEST(DraftTree, IsTheTreeOfTheReference) {
  TestExec exec;
  Rng rng(7);
  for (int round = 0; round < 60; ++round) {
    const int64_t k = 2 + rng.next_below(4);
    const int64_t depth = 1 + rng.next_below(5);
    const DraftShape shape{.tokens = depth, .branches = k};
    DraftTree tree(shape);
    Ints parent_list{-1};
    const auto children = [&] {
      std::vector<TokenLogprob> best;
      for (int32_t c = 0; c < k; ++c)
        best.push_back({c, -0.1f * static_cast<float>(1 + c) - rng.next_uniform()});
      return best;
    };
    tree.start(children());
    for (int64_t level = 1; level < depth; ++level) {
      const Ids frontier(tree.frontier().begin(), tree.frontier().end());
      ASSERT_EQ(static_cast<int64_t>(frontier.size()), k);
      for (const int32_t node : frontier) {
        parent_list.push_back(node);
        tree.add_children(node, children());
      }
      tree.grow();
    }
    ASSERT_EQ(tree.num_nodes(), shape.candidates());
    const int64_t width = 1 + rng.next_below(static_cast<uint32_t>(shape.candidates()));
    const Kept kept(tree, width);

    // Numbers of the kept nodes: by walking both lists at once.
    Ints selected;
    for (int32_t node = 0; node < tree.num_nodes() && std::ssize(selected) < width; ++node) {
      const size_t at = selected.size();
      const int32_t parent = tree.parent(node);
      const int32_t kept_parent = kept.parents[at];
      const bool same_parent =
          parent < 0 ? kept_parent < 0
                     : kept_parent >= 0 && selected[static_cast<size_t>(kept_parent)] == parent;
      if (same_parent && tree.token(node) == kept.tokens[at]) selected.push_back(node);
    }
    ASSERT_EQ(std::ssize(selected), width);
    if (depth == 1) parent_list.clear();
    const int64_t D = width + 1;
    Ints lens{100}, positions(static_cast<size_t>(D)), retrieve(positions), child(positions),
        sibling(positions);
    std::vector<uint8_t> mask(static_cast<size_t>(D * D));
    const auto row = [](Ints& v) {
      return make_view(v.data(), {1, static_cast<int64_t>(v.size())}, Format::kI64);
    };
    FATHOM_EXPECT_OK(
        launch<DraftTreeBuild>(*exec, "draft_tree",
                               {.parent_list = row(parent_list),
                                .selected = row(selected),
                                .seq_lens = make_view(lens.data(), {1}, Format::kI64),
                                .mask = make_view(mask.data(), {D * D}, Format::kBool),
                                .positions = make_view(positions.data(), {D}, Format::kI64),
                                .retrieve_index = row(retrieve),
                                .next_token = row(child),
                                .next_sibling = row(sibling),
                                .topk = k,
                                .depth = depth,
                                .mask_mode = TreeMask::kQueryOnly}));

    for (int64_t i = 0; i < D; ++i) {
      std::vector<uint8_t> sees(static_cast<size_t>(D), 0);
      int64_t position = 100;
      for (auto at = static_cast<int32_t>(i); at > 0; ++position) {
        sees[static_cast<size_t>(at)] = 1;
        at = kept.parents[static_cast<size_t>(at - 1)] + 1;
      }
      sees[0] = 1;
      EXPECT_EQ(positions[static_cast<size_t>(i)], position);
      EXPECT_EQ(std::vector<uint8_t>(mask.begin() + i * D, mask.begin() + (i + 1) * D), sees);
      Ints listed;
      for (int64_t c = child[static_cast<size_t>(i)]; c >= 0; c = sibling[static_cast<size_t>(c)])
        listed.push_back(c);
      Ints expected;
      for (int64_t c = 1; c < D; ++c)
        if (kept.parents[static_cast<size_t>(c - 1)] + 1 == i) expected.push_back(c);
      EXPECT_EQ(listed, expected);
    }
  }
}

}  // namespace
}  // namespace fathom
