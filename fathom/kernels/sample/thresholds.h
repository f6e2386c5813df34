// Thresholds of a row of probabilities: the k-th largest value, and the value at which the largest
// ones reach a mass. Shared by sample/renorm and sample/draw.
//
// A histogram over the leading byte of the float finds the group that holds the threshold, then the
// next byte within it, and so on: four passes over the row whatever its values, no sorting. (Bits
// of non-negative floats order as their values do.) All sums are in float64 and in an order that
// depends on the length of the row alone.
#pragma once

#include <cstdint>

namespace fathom {

/// A probability as all samplers read it: NaN and negative values count as 0.
inline float usable_probability(float p) {
  return p > 0.0f ? p : 0.0f;
}

/// What lies at or above a threshold.
struct Kept {
  float threshold = 0.0f;
  double mass = 0.0;
};

/// The k-th largest value, k >= 1; threshold 0 and all of the mass for k >= count.
Kept top_k_threshold(const float* p, int64_t count, int64_t k);

/// The largest threshold at which the values that are not below it have at least `target` mass;
/// threshold 0 and all of the mass if the row has less.
Kept top_p_threshold(const float* p, int64_t count, double target);

/// Mass of the values that are not below the threshold.
double mass_from(const float* p, int64_t count, float threshold);

}  // namespace fathom
