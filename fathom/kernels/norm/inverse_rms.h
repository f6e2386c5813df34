// The root mean square of a row in the order of sums that all variants follow. Static, so that
// files compiled for different instruction sets never share one copy of its code.
#pragma once

#include <cmath>
#include <cstdint>

namespace fathom {

/// 1 / sqrt(mean of squares + eps) of D values; value(d) gives them. Partial sum p takes the
/// elements d with d % 64 == p, and the partial sums are then folded in halves: an order that
/// vectors of any width can follow, so that all variants give the same bits.
template <class Value>
static float inverse_rms_of(int64_t D, float eps, Value value) {
  constexpr int kPartials = 64;
  float partial[kPartials] = {};
  for (int64_t d = 0; d < D; ++d) {
    const float v = value(d);
    partial[d % kPartials] += v * v;
  }
  for (int half = kPartials / 2; half > 0; half /= 2) {
    for (int p = 0; p < half; ++p)
      partial[p] += partial[p + half];
  }
  return 1.0f / std::sqrt(partial[0] / static_cast<float>(D) + eps);
}

}  // namespace fathom
