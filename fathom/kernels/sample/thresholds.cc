#include "fathom/kernels/sample/thresholds.h"

#include <algorithm>
#include <span>

#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

constexpr int kBuckets = 2048;

/// The bits of the float that a pass looks at: `width` of them above the lowest `shift`. Those
/// above were found by the passes before.
struct Pass {
  int shift;
  int width;
};

/// Few passes over long rows; few buckets to clear and to scan for short ones.
constexpr Pass kLongRow[] = {{21, 11}, {10, 11}, {0, 10}};
constexpr Pass kShortRow[] = {{24, 8}, {16, 8}, {8, 8}, {0, 8}};
constexpr int64_t kShortCount = 2048;

struct Histogram {
  int32_t counts[kBuckets];
  double masses[kBuckets];
};

/// Counts the values whose upper bits are `prefix`, by their next bits.
void count_values(const float* p, int64_t count, uint32_t prefix, Pass pass, Histogram& histogram) {
  const auto [shift, width] = pass;
  std::fill_n(histogram.counts, 1 << width, 0);
  std::fill_n(histogram.masses, 1 << width, 0.0);
  const uint32_t mask = (1u << width) - 1u;
  for (int64_t i = 0; i < count; ++i) {
    const float value = usable_probability(p[i]);
    const uint32_t bits = float_bits(value);
    if (uint64_t{bits} >> (shift + width) != prefix) continue;
    const uint32_t bucket = (bits >> shift) & mask;
    ++histogram.counts[bucket];
    histogram.masses[bucket] += double{value};
  }
}

/// Finds the largest value at which reached(count, mass) holds, where both count what is not below
/// it. The caller makes sure that the whole row reaches it, up to rounding of the mass.
template <class Reached>
Kept find_threshold(const float* p, int64_t count, Reached reached) {
  Histogram histogram;
  uint32_t prefix = 0;
  int64_t above = 0;
  double mass_above = 0;
  const std::span<const Pass> passes =
      count <= kShortCount ? std::span<const Pass>(kShortRow) : std::span<const Pass>(kLongRow);
  for (const Pass& pass : passes) {
    count_values(p, count, prefix, pass, histogram);
    int chosen = -1;
    for (int b = (1 << pass.width) - 1; b >= 0; --b) {
      if (histogram.counts[b] == 0) continue;
      // Where rounding keeps the sum below its target, the lowest group is the one.
      if (chosen >= 0) {
        above += histogram.counts[chosen];
        mass_above += histogram.masses[chosen];
      }
      chosen = b;
      if (reached(above + histogram.counts[b], mass_above + histogram.masses[b])) break;
    }
    prefix = prefix << pass.width | static_cast<uint32_t>(chosen);
    if (pass.shift == 0) mass_above += histogram.masses[chosen];
  }
  return {float_from_bits(prefix), mass_above};
}

}  // namespace

double mass_from(const float* p, int64_t count, float threshold) {
  double mass = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = usable_probability(p[i]);
    if (value >= threshold) mass += double{value};
  }
  return mass;
}

Kept top_k_threshold(const float* p, int64_t count, int64_t k) {
  if (k >= count) return {0.0f, mass_from(p, count, 0.0f)};
  return find_threshold(p, count, [&](int64_t n, double) { return n >= k; });
}

Kept top_p_threshold(const float* p, int64_t count, double target) {
  const double all = mass_from(p, count, 0.0f);
  if (count == 0 || target > all) return {0.0f, all};
  return find_threshold(p, count, [&](int64_t, double mass) { return mass >= target; });
}

}  // namespace fathom
