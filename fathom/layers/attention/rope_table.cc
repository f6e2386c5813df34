#include "fathom/layers/attention/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fathom {
namespace {

// The pair index at which a frequency turns `rotations` times over the original context.
double correction_dim(double rotations, const RopeParams& p) {
  return static_cast<double>(p.dim) *
         std::log(static_cast<double>(p.original_positions) /
                  (2.0 * std::numbers::pi * rotations)) /
         (2.0 * std::log(p.theta));
}

}  // namespace

std::vector<double> rope_frequencies(const RopeParams& p) {
  const int64_t pairs = p.dim / 2;
  double low = 0.0;
  double high = 1.0;
  if (p.yarn) {
    low = std::max(std::floor(correction_dim(p.beta_fast, p)), 0.0);
    high = std::min(std::ceil(correction_dim(p.beta_slow, p)), static_cast<double>(p.dim - 1));
    if (low == high) high = low + 0.001;
  }
  std::vector<double> w(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) {
    const double f = std::pow(p.theta, -2.0 * static_cast<double>(i) / static_cast<double>(p.dim));
    const double ramp =
        p.yarn ? std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0) : 0.0;
    w[static_cast<size_t>(i)] = f * (1.0 - ramp) + f / p.factor * ramp;
  }
  return w;
}

void fill_rope_table(const RopeParams& p, const View& table) {
  const std::vector<double> w = rope_frequencies(p);
  const int64_t pairs = p.dim / 2;
  for (int64_t position = 0; position < table.dim(0); ++position) {
    float* row = table.row<float>(position);
    const float place = static_cast<float>(position) / static_cast<float>(p.position_divisor);
    for (int64_t i = 0; i < pairs; ++i) {
      // The product in float32 is part of the definition: far positions depend on its rounding.
      const float angle = place * static_cast<float>(w[static_cast<size_t>(i)]);
      row[i] = static_cast<float>(std::cos(static_cast<double>(angle)) * p.attention_factor);
      row[pairs + i] =
          static_cast<float>(std::sin(static_cast<double>(angle)) * p.attention_factor);
    }
  }
}

Result<View> rope_table(WeightStore& store, const RopeParams& p, int64_t num_positions) {
  if (p.dim < 2 || p.dim % 2 != 0) {
    return invalid_argument(str_cat("rotary dimension is ", p.dim, ", expected an even number"));
  }
  return store.constant("rotary table", {num_positions, p.dim}, Format::kF32, "P,Dr",
                        [&](std::byte* out) {
                          fill_rope_table(p, make_view(out, {num_positions, p.dim}, Format::kF32));
                        });
}

}  // namespace fathom
