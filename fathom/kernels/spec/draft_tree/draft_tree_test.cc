#include "fathom/kernels/spec/draft_tree/draft_tree.h"

#include <cmath>
#include <limits>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

using Ints = std::vector<int64_t>;

TEST(DraftTopk, SortsDescendingAndTakesTheFirstOfEquals) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  TestExec exec;
  for (const std::string& variant : variants_of<DraftTopk>()) {
    const TestTensor x({1, 8, 1}, Format::kF32, {2, -0.0f, 7, 0.0f, 7, -kInf, kInf, 2});
    const TestTensor values({1, 8, 1}, Format::kF32);
    const TestTensor ids({1, 8, 1}, Format::kI64);
    FATHOM_EXPECT_OK(
        launch<DraftTopk>(exec.with("draft_topk", variant), "draft_topk",
                          {.x = x.view(), .values = values.view(), .ids = ids.view()}));

    EXPECT_EQ(ids.values(), (std::vector<float>{6, 2, 4, 0, 7, 1, 3, 5})) << variant;
    EXPECT_EQ(values.values(), (std::vector<float>{kInf, 7, 7, 2, 2, 0, 0, -kInf})) << variant;
    EXPECT_TRUE(std::signbit(values[5])) << "values are the bits of x";
  }
}

TEST(DraftTopk, NanCountsAsLargest) {
  TestExec exec;
  for (const std::string& variant : variants_of<DraftTopk>()) {
    const TestTensor x({1, 5, 1}, Format::kBf16, {1, std::copysign(NAN, -1.0f), 3, NAN, 2});
    const TestTensor values({1, 3, 1}, Format::kBf16);
    const TestTensor ids({1, 3, 1}, Format::kI64);
    FATHOM_EXPECT_OK(
        launch<DraftTopk>(exec.with("draft_topk", variant), "draft_topk",
                          {.x = x.view(), .values = values.view(), .ids = ids.view()}));

    EXPECT_EQ(ids.values(), (std::vector<float>{1, 3, 2})) << variant;
  }
}

TEST(DraftTopk, OneRowIsTheSameForEveryNumberOfThreads) {
  Rng rng(4);
  TestTensor x({1, 5003, 1}, Format::kF32);
  for (int64_t i = 0; i < x.size(); ++i)
    x.set(i, static_cast<float>(rng.next_below(200)));  // many ties across the pieces
  std::vector<float> expected;
  for (int threads : {1, 2, 3, 5}) {
    TestExec exec(threads);
    const TestTensor values({1, 64, 1}, Format::kF32);
    const TestTensor ids({1, 64, 1}, Format::kI64);
    FATHOM_EXPECT_OK(launch<DraftTopk>(
        *exec, "draft_topk", {.x = x.view(), .values = values.view(), .ids = ids.view()}));
    if (threads == 1) expected = ids.values();
    EXPECT_EQ(ids.values(), expected) << threads;
  }
}

/// Memory and arguments of one call for one request.
struct Tree {
  Ints parent_list, selected, seq_lens;
  std::vector<uint8_t> mask;
  Ints positions, retrieve_index, next_token, next_sibling;

  Tree(Ints parents, Ints chosen, int64_t seq_len, size_t mask_bytes)
      : parent_list(std::move(parents)),
        selected(std::move(chosen)),
        seq_lens{seq_len},
        mask(mask_bytes, 1) {
    for (Ints* out : {&positions, &retrieve_index, &next_token, &next_sibling})
      out->assign(selected.size() + 1, -7);
  }

  DraftTreeBuild::Args args(int64_t topk, int64_t depth, TreeMask mode) {
    const auto row = [](Ints& v) {
      return make_view(v.data(), {1, static_cast<int64_t>(v.size())}, Format::kI64);
    };
    const auto flat = [](Ints& v) {
      return make_view(v.data(), {static_cast<int64_t>(v.size())}, Format::kI64);
    };
    return {.parent_list = row(parent_list),
            .selected = row(selected),
            .seq_lens = flat(seq_lens),
            .mask = make_view(mask.data(), {static_cast<int64_t>(mask.size())},
                              mode == TreeMask::kBits ? Format::kU8 : Format::kBool),
            .positions = flat(positions),
            .retrieve_index = row(retrieve_index),
            .next_token = row(next_token),
            .next_sibling = row(next_sibling),
            .topk = topk,
            .depth = depth,
            .mask_mode = mode};
  }
};

// Three steps of two: nodes 10 and 20, of 10 the child 11, of 11 the child 13.
Tree small_tree(size_t mask_bytes) {
  return Tree({-1, 0, 1, 2, 4}, {0, 1, 2, 6}, 3, mask_bytes);
}

TEST(DraftTreeBuild, LinksTheExampleOfThreeSteps) {
  TestExec exec;
  Tree tree = small_tree(5 * (3 + 5));

  FATHOM_EXPECT_OK(launch<DraftTreeBuild>(*exec, "draft_tree", tree.args(2, 3, TreeMask::kFull)));

  EXPECT_EQ(tree.positions, (Ints{3, 4, 4, 5, 6}));
  EXPECT_EQ(tree.retrieve_index, (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(tree.next_token, (Ints{1, 3, -1, 4, -1}));
  EXPECT_EQ(tree.next_sibling, (Ints{-1, 2, -1, -1, -1}));
  EXPECT_EQ(tree.mask, (std::vector<uint8_t>{1, 1, 1, 1, 0, 0, 0, 0,  //
                                             1, 1, 1, 1, 1, 0, 0, 0,  //
                                             1, 1, 1, 1, 0, 1, 0, 0,  //
                                             1, 1, 1, 1, 1, 0, 1, 0,  //
                                             1, 1, 1, 1, 1, 0, 1, 1}));
}

TEST(DraftTreeBuild, LeavesThePrefixToTheCaller) {
  TestExec exec;
  Tree tree = small_tree(5 * (3 + 5));
  for (size_t row = 0; row < 5; ++row)
    tree.mask[row * 8 + 1] = 0;

  FATHOM_EXPECT_OK(launch<DraftTreeBuild>(*exec, "draft_tree", tree.args(2, 3, TreeMask::kFull)));

  for (size_t row = 0; row < 5; ++row)
    EXPECT_EQ(tree.mask[row * 8 + 1], 0);
}

TEST(DraftTreeBuild, PacksRowsIntoBits) {
  TestExec exec;
  Tree tree = small_tree(5);

  FATHOM_EXPECT_OK(launch<DraftTreeBuild>(*exec, "draft_tree", tree.args(2, 3, TreeMask::kBits)));

  EXPECT_EQ(tree.mask, (std::vector<uint8_t>{0b1, 0b11, 0b101, 0b1011, 0b11011}));
}

TEST(DraftTreeBuild, NodeWithoutItsParentGetsNoLink) {
  TestExec exec;
  // Candidate 6 is a child of candidate 2, which is not selected.
  Tree tree({-1, 0, 1, 2, 4}, {0, 1, 6}, 3, 4);

  FATHOM_EXPECT_OK(launch<DraftTreeBuild>(*exec, "draft_tree", tree.args(2, 3, TreeMask::kBits)));

  EXPECT_EQ(tree.next_token, (Ints{1, -1, -1, -1}));
  EXPECT_EQ(tree.next_sibling, (Ints{-1, 2, -1, -1}));
  EXPECT_EQ(tree.positions, (Ints{3, 4, 4, 4}));
  EXPECT_EQ(tree.mask, (std::vector<uint8_t>{0b1, 0b11, 0b101, 0b1001}));
}

TEST(DraftTreeBuild, EndsWhereParentsFormACircle) {
  TestExec exec;
  // Candidates 2 and 4 name each other as parents.
  Tree tree({-1, 4, 2}, {2, 4}, 0, 3);

  FATHOM_EXPECT_OK(launch<DraftTreeBuild>(*exec, "draft_tree", tree.args(2, 2, TreeMask::kBits)));

  EXPECT_EQ(tree.mask, (std::vector<uint8_t>{0b1, 0b111, 0b111}));
}

TEST(DraftTreeBuild, RefusesWhatDoesNotDescribeATree) {
  TestExec exec;
  const auto error = [&](auto change, TreeMask mode = TreeMask::kFull) {
    Tree tree = small_tree(40);
    DraftTreeBuild::Args args = tree.args(2, 3, mode);
    change(tree, args);
    return launch<DraftTreeBuild>(*exec, "draft_tree", args).message();
  };
  const auto expect = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };

  EXPECT_EQ(error([](Tree&, DraftTreeBuild::Args&) {}), "");
  expect(error([](Tree&, DraftTreeBuild::Args& a) { a.depth = 4; }),
         "parent_list has 5 columns, expected 7 for topk 2 and depth 4");
  expect(error([](Tree&, DraftTreeBuild::Args& a) { a.topk = 0; }), "topk is 0");
  expect(error([](Tree& t, DraftTreeBuild::Args&) { t.selected[3] = 10; }),
         "selected[0,3] is 10, expected 0 to 9");
  expect(error([](Tree& t, DraftTreeBuild::Args&) { t.selected[0] = -1; }), "selected[0,0] is -1");
  expect(error([](Tree& t, DraftTreeBuild::Args&) { t.seq_lens[0] = -1; }), "seq_lens[0] is -1");
  expect(error([](Tree& t, DraftTreeBuild::Args&) { t.seq_lens[0] = 4; }),
         "mask has 40 elements, expected at least 45");
  expect(error([](Tree&, DraftTreeBuild::Args& a) { a.mask.format = Format::kU8; }),
         "mask is u8, expected bool");
}

TEST(DraftLevel, ChoosesInOrderAndRefusesTreesThatAreTooLarge) {
  TestExec exec;
  std::vector<int32_t> ids{5, 6, 7, 8}, tokens(2), rows(2);
  std::vector<float> logprobs{-1, -3, -1, -2}, paths{-1, -1}, next_paths(2);
  Ints masks{0b01, 0b10}, next_masks(2);
  const auto choose = [&] {
    const auto view = [](auto& v, Format format) { return make_view(v.data(), {2}, format); };
    return launch<DraftLevel>(*exec, "draft_level",
                              {.ids = make_view(ids.data(), {2, 2}, Format::kI32),
                               .logprobs = make_view(logprobs.data(), {2, 2}, Format::kF32),
                               .paths = view(paths, Format::kF32),
                               .masks = view(masks, Format::kI64),
                               .tokens = view(tokens, Format::kI32),
                               .rows = view(rows, Format::kI32),
                               .next_paths = view(next_paths, Format::kF32),
                               .next_masks = view(next_masks, Format::kI64)});
  };

  FATHOM_EXPECT_OK(choose());

  EXPECT_EQ(tokens, (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(rows, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(next_paths, (std::vector<float>{-2, -2}));
  EXPECT_EQ(next_masks, (Ints{0b0101, 0b1010}));
  logprobs = {-1, -1, -1, 0};  // two of three equal ones do not fit
  masks[1] = int64_t{1} << 61;
  FATHOM_EXPECT_OK(choose());
  EXPECT_EQ(tokens, (std::vector<int32_t>{5, 8}));
  EXPECT_EQ(static_cast<uint64_t>(next_masks[1]), uint64_t{1} << 63 | uint64_t{1} << 61);
  masks[1] = int64_t{1} << 62;
  EXPECT_NE(choose().message().find("tree 0 has 65 rows with its next level, expected at most 64"),
            std::string::npos);
}

}  // namespace
}  // namespace fathom
