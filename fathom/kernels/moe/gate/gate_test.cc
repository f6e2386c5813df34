#include "fathom/kernels/moe/gate/gate.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <vector>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/core/launch.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Runs every router in every variant of this machine.
class GateTest : public testing::TestWithParam<const char*> {
 protected:
  GateTest() {
    const std::string variant = GetParam();
    for (const char* kernel : {"topk_softmax", "topk_sigmoid", "topk_sqrtsoftplus", "hash_route",
                               "grouped_topk_gate", "group_limited_softmax_gate"}) {
      pins_.emplace_back(kernel, variant);
    }
    runner_.exec().pins = &pins_;
    if (variant == "avx512" && best_isa() < Isa::kAvx512) runner_.exec().pins = nullptr;
  }

  struct Choice {
    std::vector<int32_t> ids;
    std::vector<float> weights;
  };

  template <class K>
  Choice run(std::vector<float> logits, int64_t chosen, typename K::Args args) {
    Choice out{std::vector<int32_t>(static_cast<size_t>(chosen), -7),
               std::vector<float>(static_cast<size_t>(chosen), kNan)};
    args.logits = make_view(logits.data(), {1, static_cast<int64_t>(logits.size())}, Format::kF32);
    args.weights = make_view(out.weights.data(), {1, chosen}, Format::kF32);
    args.ids = make_view(out.ids.data(), {1, chosen}, Format::kI32);
    const Status status = launch<K>(runner_.exec(), "topk", args);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  template <class K>
  typename K::Args no_args() {
    return {.logits = {}, .weights = {}, .ids = {}};
  }

  static void expect_valid(const Choice& choice, int32_t num_experts) {
    const std::set<int32_t> distinct(choice.ids.begin(), choice.ids.end());
    EXPECT_EQ(distinct.size(), choice.ids.size());
    EXPECT_GE(*distinct.begin(), 0);
    EXPECT_LT(*distinct.rbegin(), num_experts);
  }

  CaseRunner runner_{cpu_kernels(), 1};
  Pins pins_;
};

// The toy vectors of DeepSeek-V3's and V2's rules, worked out by hand.
const std::vector<float> kToyLogits = {.2f, -1, 1.5f, .3f, -.4f, .9f, 2, -2};

TEST_P(GateTest, V3RuleOnTheToyVector) {
  std::vector<float> bias = {.1f, 0, -.2f, .05f, .3f, 0, -.6f, 0};
  GroupedTopkGate::Args args = no_args<GroupedTopkGate>();
  args.bias = make_view(bias.data(), {8}, Format::kF32);
  args.n_group = 4;
  args.topk_group = 2;
  args.scaling = 2.5f;

  const Choice choice = run<GroupedTopkGate>(kToyLogits, 3, args);

  EXPECT_EQ(choice.ids, (std::vector<int32_t>{5, 4, 3}));
  EXPECT_NEAR(choice.weights[0], 1.053755, 2e-6);
  EXPECT_NEAR(choice.weights[1], .594817, 2e-6);
  EXPECT_NEAR(choice.weights[2], .851427, 2e-6);
}

TEST_P(GateTest, V2RuleOnTheToyVector) {
  GroupLimitedSoftmaxGate::Args args = no_args<GroupLimitedSoftmaxGate>();
  args.n_group = 4;
  args.topk_group = 2;
  args.scaling = 16.0f;

  const Choice choice = run<GroupLimitedSoftmaxGate>(kToyLogits, 3, args);

  EXPECT_EQ(choice.ids, (std::vector<int32_t>{6, 2, 3}));
  EXPECT_NEAR(choice.weights[0], 6.540744, 1e-5);
  EXPECT_NEAR(choice.weights[1], 3.967162, 1e-5);
  EXPECT_NEAR(choice.weights[2], 1.194886, 1e-5);
}

TEST_P(GateTest, V4ScoresAreRootsOfSoftplus) {
  // Weights of one chosen expert are 1; two experts show the ratio of their scores.
  const auto score = [&](float logit) {
    const Choice c = run<TopkSqrtsoftplus>({logit, 0.0f}, 2, no_args<TopkSqrtsoftplus>());
    const size_t at = c.ids[0] == 0 ? 0 : 1;
    return double{c.weights[at]} / double{c.weights[1 - at]} * .83255461;
  };

  EXPECT_NEAR(score(-5), .0819472, 1e-7);
  EXPECT_NEAR(score(0), .8325546, 1e-6);
  EXPECT_NEAR(score(2), 1.4583991, 1e-6);
  EXPECT_NEAR(score(20), 4.4721360, 2e-6);
}

TEST_P(GateTest, V4ScoresKeepTheirDigitsAtEveryLogit) {
  std::vector<float> logits;
  for (int i = -1600; i <= 1600; ++i)
    logits.push_back(static_cast<float>(i) * 0.1f);
  for (size_t begin = 0; begin + 2 <= logits.size(); begin += 2) {
    const Choice c =
        run<TopkSqrtsoftplus>({logits[begin], logits[begin + 1]}, 2, no_args<TopkSqrtsoftplus>());
    const auto exact = [](double z) { return std::sqrt(std::log1p(std::exp(z))); };
    const double low = exact(double{logits[begin]});
    const double high = exact(double{logits[begin + 1]});
    ASSERT_EQ(c.ids, (std::vector<int32_t>{1, 0}));
    ASSERT_NEAR(double{c.weights[1]}, low / (low + high), 4e-7) << logits[begin];
  }
}

TEST_P(GateTest, V4BiasChoosesButDoesNotWeigh) {
  std::vector<float> bias = {0, 5, 0, 0};
  TopkSqrtsoftplus::Args args = no_args<TopkSqrtsoftplus>();
  args.bias = make_view(bias.data(), {4}, Format::kF32);
  args.scaling = 1.5f;

  const Choice choice = run<TopkSqrtsoftplus>({2, 0, -5, 1}, 2, args);

  EXPECT_EQ(choice.ids, (std::vector<int32_t>{1, 0}));
  EXPECT_NEAR(choice.weights[0], 1.5 * .8325546 / (.8325546 + 1.4583991), 1e-6);
  EXPECT_NEAR(choice.weights[1], 1.5 * 1.4583991 / (.8325546 + 1.4583991), 1e-6);
}

/// The table of three tokens of the vocabulary, two experts each.
class HashTable {
 public:
  explicit HashTable(std::vector<int32_t> entries = {3, 0, 1, 2, 2, 1})
      : entries_(std::move(entries)) {}

  View view() { return make_view(entries_.data(), {3, 2}, Format::kI32); }

 private:
  std::vector<int32_t> entries_;
};

TEST_P(GateTest, HashRouteTakesTheExpertsOfTheTokenAndWeighsThemByTheirLogits) {
  HashTable table;
  int32_t token = 1;
  HashRoute::Args args{.logits = {},
                       .token_ids = make_view(&token, {1}, Format::kI32),
                       .tid2eid = table.view(),
                       .weights = {},
                       .ids = {},
                       .scaling = 1.5f};

  const Choice choice = run<HashRoute>({99, 2, 0, 99}, 2, args);

  EXPECT_EQ(choice.ids, (std::vector<int32_t>{1, 2}));
  EXPECT_NEAR(choice.weights[0], 1.5 * 1.4583991 / (.8325546 + 1.4583991), 1e-6);
  EXPECT_NEAR(choice.weights[1], 1.5 * .8325546 / (.8325546 + 1.4583991), 1e-6);
}

TEST_P(GateTest, HashRouteRefusesTokensAndExpertsOutOfRange) {
  const auto error = [&](int32_t token, std::vector<int32_t> entries) {
    HashTable table(std::move(entries));
    std::vector<float> logits(4, 0.0f);
    std::vector<float> weights(2);
    std::vector<int32_t> ids(2);
    return launch<HashRoute>(runner_.exec(), "topk",
                             {.logits = make_view(logits.data(), {1, 4}, Format::kF32),
                              .token_ids = make_view(&token, {1}, Format::kI32),
                              .tid2eid = table.view(),
                              .weights = make_view(weights.data(), {1, 2}, Format::kF32),
                              .ids = make_view(ids.data(), {1, 2}, Format::kI32)})
        .message();
  };
  const std::vector<int32_t> good = {3, 0, 1, 2, 2, 1};

  EXPECT_NE(error(3, good).find("token_ids[0] is 3, expected 0 to 2: tid2eid has V = 3 rows"),
            std::string::npos);
  EXPECT_NE(error(-1, good).find("token_ids[0] is -1"), std::string::npos);
  EXPECT_NE(error(2, {0, 0, 0, 0, 0, 4}).find("tid2eid[2,1] is 4, expected 0 to 3"),
            std::string::npos);
  EXPECT_EQ(error(0, {3, 0, 0, 0, 9, 9}), "");
}

TEST_P(GateTest, LowerIdWinsAmongEqualScores) {
  const std::vector<float> equal(40, 0.5f);

  EXPECT_EQ(run<TopkSoftmax>(equal, 3, no_args<TopkSoftmax>()).ids,
            (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(run<TopkSigmoid>(equal, 3, no_args<TopkSigmoid>()).ids,
            (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(run<TopkSqrtsoftplus>(equal, 3, no_args<TopkSqrtsoftplus>()).ids,
            (std::vector<int32_t>{0, 1, 2}));
  GroupedTopkGate::Args args = no_args<GroupedTopkGate>();
  args.n_group = 4;
  args.topk_group = 2;
  EXPECT_EQ(run<GroupedTopkGate>(equal, 3, args).ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST_P(GateTest, GroupOfLowerIndexWinsAmongEqualGroups) {
  // Groups 1, 2 and 3 are equal, one of them must go: the last.
  std::vector<float> logits = {-5, -5, 1, 2, 1, 2, 1, 2};
  GroupedTopkGate::Args args = no_args<GroupedTopkGate>();
  args.n_group = 4;
  args.topk_group = 2;

  EXPECT_EQ(run<GroupedTopkGate>(logits, 4, args).ids, (std::vector<int32_t>{3, 5, 2, 4}));
}

TEST_P(GateTest, GroupsCountAsTheSumOfTwoInV3AndAsTheirBestInV2) {
  // Group 0 has the best single expert, group 1 the best pair.
  const std::vector<float> logits = {3, -9, 2, 2};
  GroupedTopkGate::Args v3 = no_args<GroupedTopkGate>();
  v3.n_group = 2;
  GroupLimitedSoftmaxGate::Args v2 = no_args<GroupLimitedSoftmaxGate>();
  v2.n_group = 2;

  EXPECT_EQ(run<GroupedTopkGate>(logits, 1, v3).ids[0], 2);
  EXPECT_EQ(run<GroupLimitedSoftmaxGate>(logits, 1, v2).ids[0], 0);
}

TEST_P(GateTest, ScoresThatTheFormatOfTheLogitsCannotTellApartGoToTheLowerId) {
  // sigmoid(2.015625) and sigmoid(2.03125) are .88242 and .88404: both are .8828 in bf16.
  std::vector<Bf16> logits = {bf16_from_float(1), bf16_from_float(2.015625f),
                              bf16_from_float(2.03125f)};
  Choice choice{std::vector<int32_t>(1), std::vector<float>(1)};
  GroupedTopkGate::Args args = no_args<GroupedTopkGate>();
  args.logits = make_view(logits.data(), {1, 3}, Format::kBf16);
  args.weights = make_view(choice.weights.data(), {1, 1}, Format::kF32);
  args.ids = make_view(choice.ids.data(), {1, 1}, Format::kI32);

  EXPECT_TRUE(launch<GroupedTopkGate>(runner_.exec(), "topk", args).ok());
  EXPECT_EQ(choice.ids[0], 2);
  args.precision = ScorePrecision::kLogits;
  EXPECT_TRUE(launch<GroupedTopkGate>(runner_.exec(), "topk", args).ok());
  EXPECT_EQ(choice.ids[0], 1);
}

TEST_P(GateTest, MaskedGroupsLoseAgainstNegativeScores) {
  // A bias of -2 makes every choice score negative; a masked group counts as -inf, not as 0.
  std::vector<float> bias(8, -2.0f);
  GroupedTopkGate::Args args = no_args<GroupedTopkGate>();
  args.bias = make_view(bias.data(), {8}, Format::kF32);
  args.n_group = 4;
  args.topk_group = 1;

  EXPECT_EQ(run<GroupedTopkGate>({0, 0, 0, 0, 1, 1, 0, 0}, 2, args).ids,
            (std::vector<int32_t>{4, 5}));
}

TEST_P(GateTest, BiasChoosesButDoesNotWeigh) {
  std::vector<float> bias = {0, 5, 0, 0};
  TopkSigmoid::Args args = no_args<TopkSigmoid>();
  args.bias = make_view(bias.data(), {4}, Format::kF32);

  const Choice choice = run<TopkSigmoid>({3, 0, 2, 1}, 1, args);

  EXPECT_EQ(choice.ids[0], 1);
  EXPECT_NEAR(choice.weights[0], 0.5, 1e-6);
}

TEST_P(GateTest, BiasedScoreBelowMinusOneCanBeChosen) {
  std::vector<float> bias = {-7, -6, -8};
  TopkSigmoid::Args args = no_args<TopkSigmoid>();
  args.bias = make_view(bias.data(), {3}, Format::kF32);

  EXPECT_EQ(run<TopkSigmoid>({0, 0, 0}, 3, args).ids, (std::vector<int32_t>{1, 0, 2}));
}

TEST_P(GateTest, NanAndInfiniteLogitsGiveValidDistinctIds) {
  std::vector<float> one(256, 0.0f);
  one[17] = kNan;
  std::vector<float> mixed(256, kNan);
  mixed[200] = -kInf;
  mixed[201] = kInf;
  mixed[202] = 1;
  GroupedTopkGate::Args v3 = no_args<GroupedTopkGate>();
  v3.n_group = 8;
  v3.topk_group = 4;
  GroupLimitedSoftmaxGate::Args v2 = no_args<GroupLimitedSoftmaxGate>();
  v2.n_group = 8;
  v2.topk_group = 3;

  for (const std::vector<float>& logits :
       {one, mixed, std::vector<float>(256, kNan), std::vector<float>(256, -kInf),
        std::vector<float>(256, kInf)}) {
    expect_valid(run<TopkSoftmax>(logits, 8, no_args<TopkSoftmax>()), 256);
    expect_valid(run<TopkSigmoid>(logits, 8, no_args<TopkSigmoid>()), 256);
    expect_valid(run<TopkSqrtsoftplus>(logits, 8, no_args<TopkSqrtsoftplus>()), 256);
    expect_valid(run<GroupedTopkGate>(logits, 8, v3), 256);
    expect_valid(run<GroupLimitedSoftmaxGate>(logits, 8, v2), 256);
  }
}

TEST_P(GateTest, NanLogitIsNeverChosenBeforeANumber) {
  EXPECT_EQ(run<TopkSigmoid>({kNan, -90, 1, kNan}, 2, no_args<TopkSigmoid>()).ids,
            (std::vector<int32_t>{2, 1}));
}

TEST_P(GateTest, NanInSoftmaxShowsInTheWeights) {
  EXPECT_TRUE(std::isnan(run<TopkSoftmax>({1, kNan, 2}, 1, no_args<TopkSoftmax>()).weights[0]));
}

TEST_P(GateTest, RefusesGroupsThatDoNotDivideTheExperts) {
  std::vector<float> logits(10, 0.0f);
  std::vector<float> weights(4);
  std::vector<int32_t> ids(4);
  GroupedTopkGate::Args args = no_args<GroupedTopkGate>();
  args.logits = make_view(logits.data(), {1, 10}, Format::kF32);
  args.weights = make_view(weights.data(), {1, 4}, Format::kF32);
  args.ids = make_view(ids.data(), {1, 4}, Format::kI32);
  const auto error = [&](int groups, int kept, int shared) {
    args.n_group = groups;
    args.topk_group = kept;
    args.num_shared = shared;
    return launch<GroupedTopkGate>(runner_.exec(), "topk", args).message();
  };

  EXPECT_NE(error(3, 1, 0).find("does not divide the 10 experts"), std::string::npos);
  EXPECT_NE(error(5, 6, 0).find("topk_group is 6, expected 1 to 5"), std::string::npos);
  EXPECT_NE(error(5, 1, 0).find("groups that hold 2"), std::string::npos);
  EXPECT_NE(error(1, 1, 4).find("num_shared is 4, expected 0 to 3"), std::string::npos);
  EXPECT_EQ(error(5, 1, 2), "");
}

INSTANTIATE_TEST_SUITE_P(Variants,
                         GateTest,
                         testing::Values("portable", "avx512"),
                         [](const auto& variant) { return std::string(variant.param); });

}  // namespace
}  // namespace fathom
