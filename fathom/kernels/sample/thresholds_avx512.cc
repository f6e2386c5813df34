// Thresholds in three steps: a bound that is not above the threshold; the candidates that are not
// below the bound, copied side by side in one pass over the row; bisection of the bits among the
// candidates, which drops those that can no longer matter as it goes. (Bits of positive floats
// order as their values do, so thresholds are integers here.)
#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/sample/thresholds.h"

namespace fathom::avx512 {
namespace {

constexpr float kSmallest = 0x1p-149f;  // of the positive floats
constexpr int64_t kSampleVectors = 256;
/// A sample pays where it leaves out most of the row.
constexpr int64_t kLeastSampledCount = 2 * kSampleVectors * kLanes;
/// Accumulators that do not wait for each other.
constexpr int kSums = 4;

float at_least_smallest(float threshold) {
  return threshold > kSmallest ? threshold : kSmallest;
}

/// Float64 sums of 16 floats at a time, in a fixed order.
struct Sums {
  __m512d low[kSums];
  __m512d high[kSums];

  Sums() {
    for (int s = 0; s < kSums; ++s)
      low[s] = high[s] = _mm512_setzero_pd();
  }

  void add(int s, __m512 v) {
    low[s] = _mm512_add_pd(low[s], _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
    high[s] = _mm512_add_pd(high[s], _mm512_cvtps_pd(_mm512_maskz_extractf32x8_ps(0xFF, v, 1)));
  }

  double total() const {
    __m512d sum = _mm512_setzero_pd();
    for (int s = 0; s < kSums; ++s)
      sum = _mm512_add_pd(sum, _mm512_add_pd(low[s], high[s]));
    return _mm512_reduce_add_pd(sum);
  }
};

/// Calls f(s, v, i) for every vector of the row, lanes beyond its end 0; s numbers the accumulator.
template <class F>
void for_vectors(const float* p, int64_t count, F f) {
  int64_t i = 0;
  for (; i + kSums * kLanes <= count; i += kSums * kLanes) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
      prefetch_to_read(p + i + s * kLanes + kPrefetchBytes / 4);
      f(s, _mm512_loadu_ps(p + i + s * kLanes), i + s * kLanes);
    }
  }
  for (int s = 0; i < count; i += kLanes, ++s)
    f(s, load16(p + i, first_lanes(count - i)), i);
}

int32_t bits_of(float value) {
  return __builtin_bit_cast(int32_t, value);
}

float value_of(int32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// Values at or above a threshold.
struct Part {
  int64_t count = 0;
  double mass = 0;
};

Part part_from(const float* p, int64_t count, int32_t threshold) {
  const __m512 least = _mm512_set1_ps(value_of(threshold));
  Sums sums;
  Part part;
  for_vectors(p, count, [&](int s, __m512 v, int64_t) {
    const __mmask16 kept = _mm512_cmp_ps_mask(v, least, _CMP_GE_OQ);
    part.count += _mm_popcnt_u32(kept);
    sums.add(s, _mm512_maskz_mov_ps(kept, v));
  });
  part.mass = sums.total();
  return part;
}

enum class Side { kFrom, kBelow };

/// Keeps the values on one side of the threshold, in order; returns their number. Values may be
/// overwritten by those that come after them, never before they are read.
int64_t keep_side(float* values, int64_t count, int32_t threshold, Side side) {
  const __m512 limit = _mm512_set1_ps(value_of(threshold));
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 v = load16(values + i, mask);
    const __mmask16 from = _mm512_cmp_ps_mask(v, limit, _CMP_GE_OQ);
    const auto taken = static_cast<__mmask16>(mask & (side == Side::kFrom ? from : ~from));
    _mm512_storeu_ps(values + kept, _mm512_maskz_compress_ps(taken, v));
    kept += _mm_popcnt_u32(taken);
  }
  return kept;
}

/// The largest threshold in [low, high] at which reached(count, mass) of what is not below it
/// holds; low if it holds nowhere. Destroys the candidates.
template <class Reached>
Kept search(float* candidates, int64_t count, int32_t low, int32_t high, Reached reached) {
  Part above;  // no longer among the candidates
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    const Part part = part_from(candidates, count, middle);
    const bool some_from = 8 * part.count >= count;
    const bool some_below = 8 * (count - part.count) >= count;
    if (reached(above.count + part.count, above.mass + part.mass)) {
      low = middle;
      if (some_below) count = keep_side(candidates, count, middle, Side::kFrom);
    } else {
      high = middle - 1;
      if (!some_from) continue;
      above.count += part.count;
      above.mass += part.mass;
      count = keep_side(candidates, count, middle, Side::kBelow);
    }
  }
  return {value_of(low), above.mass + part_from(candidates, count, low).mass};
}

/// A value that probably more than k of the row are not below, and not many more. Whole vectors,
/// spread over the row; the rank has a quarter and four standard deviations to spare.
float lower_bound_from_sample(const float* p, int64_t count, int64_t k, float* room) {
  const int64_t step = count / kSampleVectors;
  const __m512 zero = _mm512_setzero_ps();
  for (int64_t i = 0; i < kSampleVectors; ++i) {
    // In this order NaN becomes 0.
    _mm512_store_ps(room + i * kLanes, _mm512_max_ps(_mm512_loadu_ps(p + i * step), zero));
  }
  constexpr int64_t kSamples = kSampleVectors * kLanes;
  const double expected = static_cast<double>(k * kSamples) / static_cast<double>(count);
  const auto rank = static_cast<int64_t>(1.25 * expected + 4 * __builtin_sqrt(expected) + 8);
  const int32_t high = bits_of(largest_probability(room, kSamples));
  return search(room, kSamples, 0, high, [&](int64_t n, double) { return n >= rank; }).threshold;
}

}  // namespace

double mass_from(const float* p, int64_t count, float threshold) {
  const __m512 least = _mm512_set1_ps(at_least_smallest(threshold));
  Sums sums;
  for_vectors(p, count, [&](int s, __m512 v, int64_t) {
    sums.add(s, _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, least, _CMP_GE_OQ), v));
  });
  return sums.total();
}

int64_t gather_from(const float* p, int64_t count, float threshold, float* out) {
  const __m512 least = _mm512_set1_ps(at_least_smallest(threshold));
  int64_t kept = 0;
  for_vectors(p, count, [&](int, __m512 v, int64_t) {
    const __mmask16 taken = _mm512_cmp_ps_mask(v, least, _CMP_GE_OQ);
    // A whole vector is stored and the next one overwrites what was not taken; compressing into
    // memory takes longer.
    _mm512_storeu_ps(out + kept, _mm512_maskz_compress_ps(taken, v));
    kept += _mm_popcnt_u32(taken);
  });
  return kept;
}

float largest_probability(const float* p, int64_t count) {
  __m512 largest[kSums] = {};
  for_vectors(p, count, [&](int s, __m512 v, int64_t) {
    largest[s] = _mm512_max_ps(v, largest[s]);  // in this order NaN changes nothing
  });
  return _mm512_reduce_max_ps(
      _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3])));
}

bool has_nan(const float* p, int64_t count) {
  unsigned found = 0;
  for_vectors(p, count,
              [&](int, __m512 v, int64_t) { found |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); });
  return found != 0;
}

Kept top_k_threshold(const float* p, int64_t count, int64_t k, float* room) {
  if (k >= count) return {0.0f, mass_from(p, count, 0.0f)};
  const bool sampled = count >= kLeastSampledCount && k <= count / 4;
  const float bound = sampled ? lower_bound_from_sample(p, count, k, room) : 0.0f;
  int64_t candidates = gather_from(p, count, bound, room);
  if (candidates < k && bound > 0) candidates = gather_from(p, count, 0.0f, room);
  if (candidates < k) return {0.0f, mass_from(p, count, 0.0f)};  // the k-th largest is 0
  const int32_t high = bits_of(largest_probability(room, candidates));
  return search(room, candidates, bits_of(at_least_smallest(0)), high,
                [&](int64_t n, double) { return n >= k; });
}

Kept top_p_threshold(const float* p, int64_t count, double target, float* room) {
  const double all = mass_from(p, count, 0.0f);
  if (!(all > 0) || target > all) return {0.0f, all};
  // Values below this cannot have more mass together than what may be left out.
  const double spare = 0.999 * (all - target) / static_cast<double>(count);
  const float least = at_least_smallest(static_cast<float>(spare));
  const int64_t candidates = gather_from(p, count, least, room);
  const int32_t high = bits_of(largest_probability(room, candidates));
  return search(room, candidates, bits_of(least), high,
                [&](int64_t, double mass) { return mass >= target; });
}

}  // namespace fathom::avx512
