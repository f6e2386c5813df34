#include "fathom/kernels/spec/verify_tree/verify_tree.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

using Ints = std::vector<int64_t>;
using Ids = std::vector<int32_t>;

/// One tree per request, all alike, and the memory of a call.
struct Batch {
  int64_t batch, nodes, most;
  Ints candidates, retrieve_index, next_token, next_sibling;
  Ids predicts, accept_index, accepted;

  Batch(int64_t num_requests,
        int64_t most_accepted,
        const Ints& tokens,
        const Ints& children,
        const Ints& siblings)
      : batch(num_requests),
        nodes(static_cast<int64_t>(tokens.size())),
        most(most_accepted),
        predicts(static_cast<size_t>(batch * nodes), -7),
        accept_index(static_cast<size_t>(batch * most), -1),
        accepted(static_cast<size_t>(batch), -7) {
    for (int64_t b = 0; b < batch; ++b) {
      candidates.insert(candidates.end(), tokens.begin(), tokens.end());
      next_token.insert(next_token.end(), children.begin(), children.end());
      next_sibling.insert(next_sibling.end(), siblings.begin(), siblings.end());
      for (int64_t i = 0; i < nodes; ++i)
        retrieve_index.push_back(b * nodes + i);
    }
  }

  View matrix(Ints& v) const { return make_view(v.data(), {batch, nodes}, Format::kI64); }

  View accept_view() { return make_view(accept_index.data(), {batch, most}, Format::kI32); }

  static View flat(Ids& v) {
    return make_view(v.data(), {static_cast<int64_t>(v.size())}, Format::kI32);
  }

  TreeVerifyGreedy::Args greedy(Ints& target) {
    return {.candidates = matrix(candidates),
            .retrieve_index = matrix(retrieve_index),
            .next_token = matrix(next_token),
            .next_sibling = matrix(next_sibling),
            .target_predict = matrix(target),
            .predicts = flat(predicts),
            .accept_index = accept_view(),
            .accept_token_num = flat(accepted)};
  }
};

/// Random numbers and probabilities of a batch; every tree has the same rows.
struct Chances {
  std::vector<float> uniform, uniform_final, target, draft;
  int64_t V;

  Chances(const Batch& t, const std::vector<std::vector<float>>& rows)
      : uniform(static_cast<size_t>(t.batch * t.nodes), 0.5f),
        uniform_final(static_cast<size_t>(t.batch), 0.5f),
        V(static_cast<int64_t>(rows[0].size())) {
    for (int64_t b = 0; b < t.batch; ++b) {
      for (const auto& row : rows)
        target.insert(target.end(), row.begin(), row.end());
    }
  }

  TreeVerifySample::Args args(Batch& t) {
    const auto cube = [&](std::vector<float>& v) {
      return v.empty() ? View{} : make_view(v.data(), {t.batch, t.nodes, V}, Format::kF32);
    };
    return {.candidates = t.matrix(t.candidates),
            .retrieve_index = t.matrix(t.retrieve_index),
            .next_token = t.matrix(t.next_token),
            .next_sibling = t.matrix(t.next_sibling),
            .uniform = make_view(uniform.data(), {t.batch, t.nodes}, Format::kF32),
            .uniform_final = make_view(uniform_final.data(), {t.batch}, Format::kF32),
            .target_probs = cube(target),
            .draft_probs = cube(draft),
            .predicts = Batch::flat(t.predicts),
            .accept_index = t.accept_view(),
            .accept_token_num = Batch::flat(t.accepted)};
  }
};

TEST(TreeVerifyGreedy, TakesTheLongestPathThatTheTargetAgreesWith) {
  TestExec exec;
  // Root; 10 and 20 behind it; 11 behind 10; 13 behind 11.
  Batch tree(1, 4, {5, 10, 20, 11, 13}, {1, 3, -1, 4, -1}, {-1, 2, -1, -1, -1});
  Ints target = {10, 11, 5, 77, 9};

  FATHOM_EXPECT_OK(launch<TreeVerifyGreedy>(*exec, "verify", tree.greedy(target)));

  EXPECT_EQ(tree.accept_index, (Ids{0, 1, 3, -1}));
  EXPECT_EQ(tree.accepted, Ids{2});
  EXPECT_EQ(tree.predicts, (Ids{10, 11, -7, 77, -7}));
}

TEST(TreeVerifyGreedy, LooksAtSiblingsInOrder) {
  TestExec exec;
  Batch tree(1, 4, {5, 10, 20, 21}, {1, -1, 3, -1}, {-1, 2, -1, -1});
  Ints target = {20, 0, 21, 8};

  FATHOM_EXPECT_OK(launch<TreeVerifyGreedy>(*exec, "verify", tree.greedy(target)));

  EXPECT_EQ(tree.accept_index, (Ids{0, 2, 3, -1}));
  EXPECT_EQ(tree.predicts, (Ids{20, -7, 21, 8}));
}

TEST(TreeVerifyGreedy, EndsWhereSiblingsFormACircle) {
  TestExec exec;
  Batch tree(1, 3, {5, 10, 20}, {1, -1, -1}, {-1, 2, 1});
  Ints target = {30, 0, 0};

  FATHOM_EXPECT_OK(launch<TreeVerifyGreedy>(*exec, "verify", tree.greedy(target)));

  EXPECT_EQ(tree.accepted, Ids{0});
  EXPECT_EQ(tree.predicts[0], 30);
}

TEST(TreeVerifyGreedy, RefusesIndicesOutOfRange) {
  TestExec exec;
  const auto error = [&](auto change) {
    Batch tree(2, 3, {5, 10, 20}, {1, -1, -1}, {-1, 2, -1});
    Ints target(6, 0);
    change(tree);
    return launch<TreeVerifyGreedy>(*exec, "verify", tree.greedy(target)).message();
  };
  const auto expect = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };

  EXPECT_EQ(error([](Batch&) {}), "");
  expect(error([](Batch& t) { t.retrieve_index[4] = 6; }),
         "retrieve_index[1,1] is 6, expected 0 to 5");
  expect(error([](Batch& t) { t.next_token[0] = 3; }), "next_token[0,0] is 3, expected -1 to 2");
  expect(error([](Batch& t) { t.next_sibling[5] = -2; }), "next_sibling[1,2] is -2");
}

// One level: the root's row is .1 .5 .25 .15, its children are tokens 1 and 2.
struct OneLevel {
  Batch tree{1, 3, {9, 1, 2}, {1, -1, -1}, {-1, 2, -1}};
  Chances chances{tree, {{.125f, .5f, .25f, .125f}, {0, 0, 0, 1}, {1, 0, 0, 0}}};
};

Ids run(TestExec& exec,
        std::string_view variant,
        OneLevel& o,
        float coin,
        float last,
        float threshold_single = 1,
        float threshold_acc = 1) {
  o.chances.uniform[0] = coin;
  o.chances.uniform_final[0] = last;
  TreeVerifySample::Args args = o.chances.args(o.tree);
  args.threshold_single = threshold_single;
  args.threshold_acc = threshold_acc;
  FATHOM_EXPECT_OK(
      launch<TreeVerifySample>(exec.with("tree_verify_sample", variant), "verify", args));
  return o.tree.predicts;
}

TEST(TreeVerifySample, SiblingsPartitionTheCoin) {
  TestExec exec;
  for (const std::string& variant : variants_of<TreeVerifySample>()) {
    for (const bool with_draft : {false, true}) {
      const auto fresh = [&] {
        OneLevel o;
        if (with_draft) o.chances.draft.assign(12, 0.0f);
        return o;
      };
      OneLevel first = fresh(), second = fresh(), none = fresh(), none_high = fresh();
      EXPECT_EQ(run(exec, variant, first, .4f, .5f), (Ids{1, 3, -7}));
      EXPECT_EQ(run(exec, variant, second, .6f, .5f), (Ids{2, -7, 0}));
      // Both rejected: .125 of token 0 and .125 of token 3 are left.
      EXPECT_EQ(run(exec, variant, none, .9f, .4f), (Ids{0, -7, -7}));
      EXPECT_EQ(run(exec, variant, none_high, .9f, .5f), (Ids{3, -7, -7}));
      EXPECT_EQ(none.tree.accepted, Ids{0});
      if (with_draft) {
        EXPECT_EQ(none.chances.draft[1], .5f);
        EXPECT_EQ(none.chances.draft[2], .25f);
        EXPECT_EQ(second.chances.draft[1], .5f);
        EXPECT_EQ(second.chances.draft[2], 0.0f);
      }
    }
  }
}

TEST(TreeVerifySample, ThresholdsAcceptMore) {
  TestExec exec;
  for (const std::string& variant : variants_of<TreeVerifySample>()) {
    OneLevel by_mass, by_one;
    EXPECT_EQ(run(exec, variant, by_mass, .9f, .5f, 1, .5f)[0], 1);
    EXPECT_EQ(run(exec, variant, by_one, .99f, .5f, .3f, 1)[0], 1);
  }
}

TEST(TreeVerifySample, NeverAcceptsAnImpossibleToken) {
  TestExec exec;
  for (const std::string& variant : variants_of<TreeVerifySample>()) {
    for (const float threshold : {0.0f, 1.0f}) {
      OneLevel o;
      o.chances.target[1] = 0.0f;
      o.chances.target[2] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_EQ(run(exec, variant, o, 0.0f, 0.99f, threshold, threshold), (Ids{3, -7, -7}));
      EXPECT_EQ(o.tree.accepted, Ids{0});
    }
  }
}

TEST(TreeVerifySample, RowWithoutMassGivesTheLastToken) {
  TestExec exec;
  for (const std::string& variant : variants_of<TreeVerifySample>()) {
    OneLevel o;
    o.chances.target = {0, .5f, .25f, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_EQ(run(exec, variant, o, .9f, .5f), (Ids{3, -7, -7}));
  }
}

TEST(TreeVerifySample, RefusesWhatIsOutOfRange) {
  TestExec exec;
  const auto error = [&](auto change) {
    OneLevel o;
    TreeVerifySample::Args args = o.chances.args(o.tree);
    change(o, args);
    return launch<TreeVerifySample>(*exec, "verify", args).message();
  };
  const auto expect = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  using Args = TreeVerifySample::Args;

  EXPECT_EQ(error([](OneLevel&, Args&) {}), "");
  expect(error([](OneLevel& o, Args&) { o.tree.candidates[2] = 4; }),
         "candidates[0,2] is 4, expected 0 to 3");
  expect(error([](OneLevel& o, Args&) { o.chances.uniform[1] = 1.0f; }),
         "uniform[1] is 1, expected a number in [0, 1)");
  expect(error([](OneLevel& o, Args&) { o.chances.uniform_final[0] = -0.5f; }),
         "uniform_final[0] is -0.5");
  expect(error([](OneLevel&, Args& a) { a.threshold_acc = 1.5f; }), "threshold_acc is 1.5");
  expect(error([](OneLevel&, Args& a) { a.threshold_single = NAN; }), "threshold_single is nan");
}

/// Counts of tokens, and how far they are from a distribution.
struct Histogram {
  std::vector<int64_t> counts = std::vector<int64_t>(8, 0);

  void add(int32_t token) { ++counts[static_cast<size_t>(token)]; }

  int64_t total() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

  double chi_square(const std::vector<float>& exact) const {
    double sum = 0;
    for (size_t v = 0; v < counts.size(); ++v) {
      const double expected = double{exact[v]} * static_cast<double>(total());
      const double off = static_cast<double>(counts[v]) - expected;
      if (expected > 0) sum += off * off / expected;
      if (expected == 0) {
        EXPECT_EQ(counts[v], 0) << "token " << v << " is impossible";
      }
    }
    return sum;
  }
};

/// A tree of three levels with several siblings, drawn a million times: the token behind each node
/// must follow the target's distribution there, whatever the draft proposed.
class VerifiedDistribution : public testing::TestWithParam<const char*> {
 protected:
  // Node: 0 root; 1, 2, 3 behind it (tokens 4, 0, 6); 4, 5 behind 1 (tokens 4, 7); 6 behind 4.
  const std::vector<std::vector<float>> rows_ = {
      {.125f, .0625f, .125f, .0625f, .3125f, .125f, .0625f, .125f},
      {.5f, 0, .0625f, .0625f, .125f, 0, .125f, .125f},
      {.125f, .125f, .125f, .125f, .125f, .125f, .125f, .125f},
      {0, 0, 0, .5f, 0, .5f, 0, 0},
      {.25f, .25f, .125f, .0625f, .0625f, .125f, .0625f, .0625f},
      {.125f, 0, .125f, 0, .25f, .25f, .25f, 0},
      {.0625f, .0625f, .125f, .25f, .25f, .125f, .0625f, .0625f}};
  static constexpr int64_t kBatch = 500;
};

TEST_P(VerifiedDistribution, IsThatOfTheTargetAtEveryNode) {
  TestExec exec;
  Batch tree(kBatch, 4, {2, 4, 0, 6, 4, 7, 1}, {1, 4, -1, -1, 6, -1, -1},
             {-1, 2, 3, -1, 5, -1, -1});
  Chances chances(tree, rows_);
  std::vector<Histogram> behind(rows_.size());
  Rng rng(2026);
#ifdef FATHOM_SANITIZED
  constexpr int kLaunches = 20;
#else
  constexpr int kLaunches = 2000;
#endif
  for (int i = 0; i < kLaunches; ++i) {
    for (float& u : chances.uniform)
      u = rng.next_uniform();
    for (float& u : chances.uniform_final)
      u = rng.next_uniform();
    std::fill(tree.predicts.begin(), tree.predicts.end(), -7);
    FATHOM_EXPECT_OK(launch<TreeVerifySample>(exec.with("tree_verify_sample", GetParam()), "verify",
                                              chances.args(tree)));
    for (size_t place = 0; place < tree.predicts.size(); ++place) {
      if (tree.predicts[place] >= 0) behind[place % rows_.size()].add(tree.predicts[place]);
    }
  }

  EXPECT_EQ(behind[0].total(), kBatch * kLaunches);
  for (size_t node = 0; node < rows_.size(); ++node) {
    // 29.9 for 7 degrees of freedom, p = 1e-4; rows with impossible tokens have fewer.
    EXPECT_LT(behind[node].chi_square(rows_[node]), 29.9) << "node " << node;
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, VerifiedDistribution, testing::Values("portable"));
INSTANTIATE_TEST_SUITE_P(Avx512,
                         VerifiedDistribution,
                         testing::ValuesIn(best_isa() >= Isa::kAvx512
                                               ? std::vector<const char*>{"avx512"}
                                               : std::vector<const char*>{}));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VerifiedDistribution);

}  // namespace
}  // namespace fathom
