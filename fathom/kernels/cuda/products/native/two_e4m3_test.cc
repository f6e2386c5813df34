#include "fathom/kernels/cuda/products/native/two_e4m3.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

namespace fathom {
namespace {

float rounded(float x) {
  return to_float(e4m3_from_float(x));
}

/// The worst error of a bf16 number from `smallest` to `largest`, over the largest.
double worst_error(float largest, float smallest) {
  const uint32_t scale = scale_of_high(largest);
  double worst = 0.0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(Bf16{static_cast<uint16_t>(bits)});
    if (!(std::fabs(x) <= largest && std::fabs(x) >= smallest)) continue;
    const TwoParts parts = parts_of(x, scale, rounded);
    const double low = std::ldexp(rounded(parts.low), -kLowShift);
    const double sum = std::ldexp(rounded(parts.high) + low, static_cast<int>(scale) - 127);
    worst = std::max(worst, std::fabs(sum - x) / largest);
  }
  return worst;
}

TEST(TwoE4m3, AreExactDownToAFractionOfTheLargestAndCloseBelow) {
  for (float largest : {0x1p-133f, 0x1p-110f, 1.0f, 0x1.FEp0f, 448.0f, 0x1.FEp127f}) {
    EXPECT_EQ(worst_error(largest, largest * 0x1p-14f), 0.0) << largest;
    EXPECT_LE(worst_error(largest, 0.0f), 0x1p-22) << largest;
  }
}

TEST(TwoE4m3, OfInfinityAreNan) {
  EXPECT_TRUE(std::isnan(parts_of(-INFINITY, 127, rounded).high));
}

TEST(SpreadRow, LeavesEveryGroupItsRows) {
  for (int64_t first = 0; first < 300; ++first) {
    for (int64_t count = 0; count < 300; ++count)
      ASSERT_LE(spread_row(first, 3, 128) + count, spread_row(first + count, 4, 128));
  }
}

}  // namespace
}  // namespace fathom
