#include "fathom/kernels/sample/renorm/renorm_rows.h"

#include <algorithm>
#include <cmath>

namespace fathom {

// ---- the portable steps ----

double softmax_exp(const float* z, float max, float temperature, float* out, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::isnan(z[i]) ? 0.0f : std::exp((z[i] - max) / temperature);
    sum += double{out[i]};
  }
  return sum;
}

void scale_row(float* row, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    row[i] *= factor;
}

void keep_and_scale(const float* p, float* y, int64_t count, float threshold, double mass) {
  // Division in float64: a kept set of one gives exactly 1.
  for (int64_t i = 0; i < count; ++i) {
    const float value = usable_probability(p[i]);
    y[i] = value >= threshold ? static_cast<float>(double{value} / mass) : 0.0f;
  }
}

// ---- rows ----

bool is_one_hot(const RowPeak& peak, float temperature) {
  return temperature == 0 || !std::isfinite(peak.max);
}

void softmax_row(const RowKernels& kernels,
                 const float* z,
                 const RowPeak& peak,
                 float temperature,
                 float* probs,
                 int64_t count) {
  if (is_one_hot(peak, temperature)) {
    std::fill_n(probs, count, 0.0f);
    probs[peak.index] = 1.0f;
    return;
  }
  const double sum = kernels.exp_row(z, peak.max, temperature, probs, count);
  kernels.scale_row(probs, static_cast<float>(1.0 / sum), count);
}

namespace {

constexpr double kLeastMass = 1e-8;

/// The smallest float that is not below a float64 threshold: comparing with either is the same.
float round_up(double threshold) {
  const auto rounded = static_cast<float>(threshold);
  return double{rounded} < threshold ? std::nextafter(rounded, HUGE_VALF) : rounded;
}

}  // namespace

void renorm_top_k_row(
    const RowKernels& kernels, const float* p, int64_t k, float* y, int64_t count, float* room) {
  if (k >= count) {
    std::copy_n(p, y == p ? 0 : count, y);
    return;
  }
  const Kept kept = kernels.scans.top_k(p, count, k, room);
  kernels.keep_and_scale(p, y, count, kept.threshold, std::max(kept.mass, kLeastMass));
}

void renorm_top_p_row(
    const RowKernels& kernels, const float* p, double top_p, float* y, int64_t count, float* room) {
  const Kept kept = top_p >= 1 ? Kept{0.0f, kernels.scans.mass_from(p, count, 0.0f)}
                               : kernels.scans.top_p(p, count, top_p, room);
  kernels.keep_and_scale(p, y, count, kept.threshold, std::max(kept.mass, kLeastMass));
}

int32_t draw_min_p_row(
    const ProbabilityScans& scans, const float* p, float min_p, double uniform, int64_t count) {
  const float threshold =
      min_p == 0 ? 0.0f : round_up(double{min_p} * double{scans.largest(p, count)});
  return std::max(0, draw_token(scans, p, count, threshold, uniform));
}

}  // namespace fathom
