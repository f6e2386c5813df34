// A number in bf16 as the sum of two in E4M3, each times a power of two: so tensor cores that
// multiply E4M3 take activations in bf16.
//
//   x = 2^(s - 127) (high + low / 32),   s = scale_of_high(largest |x| of a block)
//
// Scaled, x is below 256. high has the upper four of the eight bits of x, low the others: exact
// down to 2^-14 of the block's largest, and to 2^-22 of it below.
#pragma once

#include "fathom/formats/minifloat.h"

namespace fathom {

/// The scale of low is so many powers of two below that of high.
inline constexpr int kLowShift = 5;

/// UE8M0 code of the scale of high. That of low is not zero: both are normal as float32.
FATHOM_HD constexpr uint32_t scale_of_high(float largest) {
  const uint32_t exponent = float_bits(largest) >> 23;
  return (exponent < 13 ? 13 : exponent) - 7;
}

struct TwoParts {
  float high;  ///< a value of E4M3
  float low;   ///< to be rounded to E4M3
};

/// NaN and 0 where x is infinite or NaN. round(float) rounds to E4M3.
template <class Round>
FATHOM_HD constexpr TwoParts parts_of(float x, uint32_t scale, Round&& round) {
  constexpr uint32_t kExponent = 0x7F800000u;
  if ((float_bits(x) & kExponent) == kExponent) return {float_from_bits(0x7FC00000u), 0.0f};
  const float scaled = x * float_from_bits((254 - scale) << 23);
  const float high = round(scaled);
  return {high, (scaled - high) * static_cast<float>(1 << kLowShift)};
}

/// Where a group begins, whose first row is `first` of all, if each has whole tiles of its own.
FATHOM_HD constexpr int64_t spread_row(int64_t first, int64_t group, int64_t tile) {
  return (first / tile + group) * tile;
}

}  // namespace fathom
