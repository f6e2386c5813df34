#include "fathom/kernels/conformance/operands/compare.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

namespace fathom {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

using Values = std::vector<double>;

TEST(Compare, MeasuresByTheirFormulas) {
  const Measures m = measure(Values{1, 2, 5}, Values{1, 4, 4});

  EXPECT_EQ(m.count, 3);
  EXPECT_DOUBLE_EQ(m.max_abs, 2);
  EXPECT_DOUBLE_EQ(m.max_rel, 0.5);
  EXPECT_DOUBLE_EQ(m.cos, 29 / std::sqrt(30.0 * 33.0));
  EXPECT_DOUBLE_EQ(m.diff, 5.0 / 63.0);
  EXPECT_DOUBLE_EQ(m.rel_l2, std::sqrt(5.0 / 33.0));
  EXPECT_DOUBLE_EQ(m.sqnr_db, 10 * std::log10(33.0 / 5.0));
}

TEST(Compare, FailsWhereNothingWasWritten) {
  EXPECT_FALSE(judge({.rel_l2 = 1e9}, Values{1, kNan}, Values{1, 2}).passed);
}

TEST(Compare, WantsNanAndInfinitiesInTheirPlaces) {
  const Gate loose{.rel_l2 = 1};

  EXPECT_TRUE(judge(loose, Values{kNan, kInf, -kInf, 1}, Values{kNan, kInf, -kInf, 1}).passed);
  EXPECT_FALSE(judge(loose, Values{kInf}, Values{-kInf}).passed);
  EXPECT_FALSE(judge(loose, Values{kInf}, Values{1e30}).passed);
  EXPECT_FALSE(judge(loose, Values{1}, Values{kNan}).passed);
}

TEST(Compare, ExactGateTakesNoDifference) {
  EXPECT_TRUE(judge(gates::exact(), Values{1, 0}, Values{1, -0.0}).passed);
  EXPECT_FALSE(judge(gates::exact(), Values{1, 1e-300}, Values{1, 0}).passed);
  EXPECT_EQ(judge(gates::exact(), Values{3, 4, 6, 5}, Values{3, 4, 5, 5}).first_bad, 2);
}

TEST(Compare, BoundOfTheWholeHoldsAtTheBoundAndFailsBeyond) {
  const Gate gate{.rel_l2 = 0.01};

  EXPECT_TRUE(judge(gate, Values{100.9}, Values{100}).passed);
  EXPECT_FALSE(judge(gate, Values{101.1}, Values{100}).passed);
}

TEST(Compare, FindsOneSkippedBlockThatCosineHides) {
  // 56 blocks of equal size, one left out: cosine is 1 still.
  Values expected(4096, 56.0);
  Values found(4096, 55.0);

  const Verdict verdict = judge(gates::gemm(Format::kBf16), found, expected);

  EXPECT_FALSE(verdict.passed);
  EXPECT_GT(verdict.measures.cos, 0.999999);
}

TEST(Compare, BitStepIsTheDistanceOfNeighboursInBf16) {
  const Gate one_step{.bf16_ulps = 1};

  EXPECT_TRUE(judge(one_step, Values{1.0078125}, Values{1.0}).passed);
  EXPECT_FALSE(judge(one_step, Values{1.0157}, Values{1.0}).passed);
  EXPECT_TRUE(judge(one_step, Values{257}, Values{256}).passed);
  EXPECT_FALSE(judge(one_step, Values{0.51}, Values{0.5}).passed);
}

TEST(Compare, AFewElementsMayBeTwoStepsAway) {
  Gate gate{.bf16_ulps = 1, .bf16_ulps_doubled = 0.001};
  Values expected(1000, 1.0);
  Values found = expected;
  found[7] = 1.0 + 1.9 / 128;

  EXPECT_TRUE(judge(gate, found, expected).passed);
  found[8] = 1.0 + 1.9 / 128;
  EXPECT_FALSE(judge(gate, found, expected).passed) << "two of a thousand are too many";
  found[8] = 1.0;
  found[7] = 1.0 + 2.1 / 128;
  EXPECT_FALSE(judge(gate, found, expected).passed) << "more than two steps";
}

TEST(Compare, EmptyOutputsPass) {
  EXPECT_TRUE(judge(gates::gemm(Format::kBf16), {}, {}).passed);
}

TEST(Compare, GateSaysItsBounds) {
  EXPECT_EQ(gates::exact().text(), "exact");
  EXPECT_EQ(gates::gemm(Format::kBf16).text(), "relL2 <= 0.003");
  EXPECT_EQ(gates::attention(Format::kBf16).text(), "diff <= 5e-06, abs <= 0.001, rel <= 0.015625");
}

}  // namespace
}  // namespace fathom
