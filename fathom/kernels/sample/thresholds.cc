// Portable scans. A histogram over the leading byte of the float finds the group that holds the
// threshold, then the next byte within it, and so on: four passes over the row whatever its values,
// no sorting. (Bits of non-negative floats order as their values do.)
#include "fathom/kernels/sample/thresholds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

constexpr int kBuckets = 256;

/// Values that follow each other often share a bucket; in tables of their own, their additions do
/// not wait for each other.
constexpr int kTables = 4;

struct Histogram {
  int64_t counts[kTables][kBuckets];
  double masses[kTables][kBuckets];

  int64_t count(int bucket) const {
    return counts[0][bucket] + counts[1][bucket] + counts[2][bucket] + counts[3][bucket];
  }

  double mass(int bucket) const {
    return (masses[0][bucket] + masses[1][bucket]) + (masses[2][bucket] + masses[3][bucket]);
  }
};

/// Counts the values whose bits above `shift` + 8 are `prefix`, by the eight bits below those.
void count_values(const float* p, int64_t count, uint32_t prefix, int shift, Histogram& histogram) {
  histogram = {};
  for (int64_t i = 0; i < count; ++i) {
    const float value = usable_probability(p[i]);
    const uint32_t bits = float_bits(value);
    if (uint64_t{bits} >> (shift + 8) != prefix) continue;
    const uint32_t bucket = (bits >> shift) & 0xFFu;
    ++histogram.counts[i % kTables][bucket];
    histogram.masses[i % kTables][bucket] += double{value};
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
  for (int shift = 24; shift >= 0; shift -= 8) {
    count_values(p, count, prefix, shift, histogram);
    int chosen = -1;
    for (int b = kBuckets - 1; b >= 0; --b) {
      if (histogram.count(b) == 0) continue;
      // Where rounding keeps the sum below its target, the lowest group is the one.
      if (chosen >= 0) {
        above += histogram.count(chosen);
        mass_above += histogram.mass(chosen);
      }
      chosen = b;
      if (reached(above + histogram.count(b), mass_above + histogram.mass(b))) break;
    }
    prefix = prefix << 8 | static_cast<uint32_t>(chosen);
    if (shift == 0) mass_above += histogram.mass(chosen);
  }
  return {float_from_bits(prefix), mass_above};
}

}  // namespace

double mass_from(const float* p, int64_t count, float threshold) {
  // One comparison leaves out what is below, zero, negative and NaN; zeros add nothing anyway.
  const float least = std::max(threshold, std::numeric_limits<float>::denorm_min());
  constexpr int kSums = 8;  // side by side, which compilers turn into vectors
  double sums[kSums] = {};
  const int64_t whole = count / kSums * kSums;
  for (int64_t i = 0; i < whole; i += kSums) {
    for (int s = 0; s < kSums; ++s)
      sums[s] += double{p[i + s] >= least ? p[i + s] : 0.0f};
  }
  double mass =
      ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  for (int64_t i = whole; i < count; ++i)
    mass += double{p[i] >= least ? p[i] : 0.0f};
  return mass;
}

int64_t gather_from(const float* p, int64_t count, float threshold, float* out) {
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (p[i] > 0.0f && p[i] >= threshold) out[kept++] = p[i];
  }
  return kept;
}

float largest_probability(const float* p, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, usable_probability(p[i]));
  return largest;
}

bool has_nan(const float* p, int64_t count) {
  return std::any_of(p, p + count, [](float value) { return std::isnan(value); });
}

Kept top_k_threshold(const float* p, int64_t count, int64_t k, float* /*room*/) {
  if (k >= count) return {0.0f, mass_from(p, count, 0.0f)};
  return find_threshold(p, count, [&](int64_t n, double) { return n >= k; });
}

Kept top_p_threshold(const float* p, int64_t count, double target, float* /*room*/) {
  const double all = mass_from(p, count, 0.0f);
  if (count == 0 || target > all) return {0.0f, all};
  return find_threshold(p, count, [&](int64_t, double mass) { return mass >= target; });
}

}  // namespace fathom
