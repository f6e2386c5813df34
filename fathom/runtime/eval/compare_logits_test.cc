#include "fathom/runtime/eval/compare_logits.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(LogitComparison, OfEqualRowsIsPerfect) {
  LogitComparison c;
  const std::vector<float> row = {1.0f, -2.0f, 3.5f};
  add_position(row, row, c);

  EXPECT_EQ(c.positions, 1);
  EXPECT_EQ(c.same_top1, 1);
  EXPECT_EQ(c.max_abs, 0.0);
  EXPECT_EQ(c.mean_kl(), 0.0);
  EXPECT_DOUBLE_EQ(c.cosine(), 1.0);
}

TEST(LogitComparison, GivesTheDivergenceOfAWorkedExample) {
  // p = (1/2, 1/2), q = (1/4, 3/4): KL = ln 2 / 2 + ln(2/3) / 2.
  LogitComparison c;
  const std::vector<float> p = {0.0f, 0.0f};
  const std::vector<float> q = {0.0f, std::log(3.0f)};
  add_position(p, q, c);
  add_position(p, p, c);

  EXPECT_NEAR(c.max_kl, 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0), 1e-7);
  EXPECT_NEAR(c.mean_kl(), c.max_kl / 2, 1e-12);
  EXPECT_NEAR(c.max_abs, std::log(3.0), 1e-6);
  EXPECT_EQ(c.same_top1, 1);  // equal logits: the smallest id, which q does not choose
  EXPECT_EQ(c.top1_share(), 0.5);
}

TEST(LogitComparison, DoesNotDependOnAConstantInTheLogits) {
  LogitComparison c;
  add_position(std::vector<float>{1000.0f, 1001.0f}, std::vector<float>{-7.0f, -6.0f}, c);

  EXPECT_NEAR(c.mean_kl(), 0.0, 1e-12);
}

}  // namespace
}  // namespace fathom
