#include "fathom/base/checked_math.h"

#include <gtest/gtest.h>
#include <limits>

namespace fathom {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(CheckedAdd, GivesTheSumOrNothing) {
  EXPECT_EQ(checked_add<int64_t>(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add<int64_t>(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_add<int64_t>(kMin, -1), std::nullopt);
  EXPECT_EQ(checked_add<uint64_t>(std::numeric_limits<uint64_t>::max(), 1), std::nullopt);
}

TEST(CheckedMul, GivesTheProductOrNothing) {
  EXPECT_EQ(checked_mul<int64_t>(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(checked_mul<int64_t>(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(checked_mul<int64_t>(kMin, -1), std::nullopt);
  EXPECT_EQ(checked_mul<int64_t>(kMax, 0), 0);
}

TEST(CheckedMath, AgreesWithWiderArithmeticOnEveryPairOfBytes) {
  for (int a = -128; a < 128; ++a) {
    for (int b = -128; b < 128; ++b) {
      const auto sum = checked_add(static_cast<int8_t>(a), static_cast<int8_t>(b));
      const auto product = checked_mul(static_cast<int8_t>(a), static_cast<int8_t>(b));
      ASSERT_EQ(sum.has_value(), a + b >= -128 && a + b <= 127);
      ASSERT_EQ(product.has_value(), a * b >= -128 && a * b <= 127);
      if (sum) {
        ASSERT_EQ(*sum, a + b);
      }
      if (product) {
        ASSERT_EQ(*product, a * b);
      }
    }
  }
}

TEST(CeilDiv, IsTheSmallestQuotientThatCovers) {
  for (int a = 0; a < 300; ++a) {
    for (int b = 1; b < 40; ++b) {
      const int q = ceil_div(a, b);
      ASSERT_GE(q * b, a);
      ASSERT_LT((q - 1) * b, a);
    }
  }
  EXPECT_EQ(ceil_div<int64_t>(kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(ceil_div<int64_t>(kMax, 1), kMax);
}

TEST(AlignUp, IsTheSmallestMultipleNotBelow) {
  EXPECT_EQ(align_up(0, 128), 0);
  EXPECT_EQ(align_up(1, 128), 128);
  EXPECT_EQ(align_up(128, 128), 128);
  EXPECT_EQ(align_up(129, 128), 256);
  EXPECT_EQ(align_up<int64_t>(7, 3), 9);
}

}  // namespace
}  // namespace fathom
