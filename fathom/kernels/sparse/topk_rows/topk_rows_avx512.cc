// Selection in three steps: a bound below the smallest score that is taken, from a sample of the
// row; the candidates that are not below it, in one pass over the row; the exact threshold among
// the candidates, by bisection of the keys. If the bound was too high, every score is a candidate.
#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/sparse/topk_rows/topk_select.h"

namespace fathom::avx512 {
namespace {

constexpr int32_t kLowestKey = INT32_MIN;
constexpr int64_t kSampleVectors = 128;
/// A sample pays where it leaves out most of the row.
constexpr int64_t kLeastSampledLength = 2 * kSampleVectors * kLanes;

/// Signed integers that order as totalOrder does: negative floats have their magnitude turned over.
__m512i keys_of(__m512 scores) {
  const __m512i bits = _mm512_castps_si512(scores);
  const __m512i sign = _mm512_srai_epi32(bits, 31);
  constexpr int kXorOfAnd = 0x78;  // a ^ (b & c)
  return _mm512_ternarylogic_epi32(bits, sign, _mm512_set1_epi32(0x7FFFFFFF), kXorOfAnd);
}

/// How many keys are not below the threshold, which is above kLowestKey; whole vectors.
int64_t count_from(const int32_t* keys, int64_t vectors, int32_t threshold) {
  const __m512i least = _mm512_set1_epi32(threshold);
  int64_t count = 0;
  for (int64_t i = 0; i < vectors; ++i) {
    const __m512i v = _mm512_load_si512(keys + i * kLanes);
    count += _mm_popcnt_u32(_mm512_cmpge_epi32_mask(v, least));
  }
  return count;
}

/// The largest threshold in [low, high] that `least` keys or more are not below, or the first one
/// met on the way to it that no more than `most` are not below. At least `least` are not below low.
/// Fewer than 16 kLowestKey may follow the keys.
int32_t find_threshold(
    const int32_t* keys, int64_t vectors, int64_t low, int64_t high, int64_t least, int64_t most) {
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    const int64_t count = count_from(keys, vectors, static_cast<int32_t>(middle));
    if (count < least) {
      high = middle - 1;
    } else {
      low = middle;
      if (count <= most) break;
    }
  }
  return static_cast<int32_t>(low);
}

/// A key that probably more than k scores are not below, and not many more. Whole vectors, spread
/// over the row: neighbours resemble each other, so the rank has a quarter and four standard
/// deviations to spare.
int32_t lower_bound_from_sample(const float* scores, int64_t length, int64_t k, int32_t* room) {
  const int64_t step = length / kSampleVectors;
  __m512i largest = _mm512_set1_epi32(kLowestKey);
  for (int64_t i = 0; i < kSampleVectors; ++i) {
    const __m512i key = keys_of(_mm512_loadu_ps(scores + i * step));
    _mm512_store_si512(room + i * kLanes, key);
    largest = _mm512_max_epi32(largest, key);
  }
  constexpr int64_t kSamples = kSampleVectors * kLanes;
  const double expected = static_cast<double>(k * kSamples) / static_cast<double>(length);
  const double rank = 1.25 * expected + 4 * __builtin_sqrt(expected) + 8;
  const auto least = static_cast<int64_t>(rank);
  return find_threshold(room, kSampleVectors, kLowestKey, _mm512_reduce_max_epi32(largest), least,
                        least + least / 8);
}

struct Candidates {
  int32_t* keys;
  int32_t* positions;
  int64_t count = 0;
  int32_t highest = kLowestKey;  ///< no key is above it

  int64_t vectors() const { return (count + kLanes - 1) / kLanes; }

  void add(__m512i position, __mmask16 taken) {
    // A whole vector is stored and the next one overwrites what was not taken; compressing into
    // memory takes longer.
    _mm512_storeu_si512(positions + count, _mm512_maskz_compress_epi32(taken, position));
    count += _mm_popcnt_u32(taken);
  }
};

__m512i lane_numbers() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/// The score of a key.
float score_of(int32_t key) {
  return __builtin_bit_cast(float, key ^ (key >> 31 & 0x7FFFFFFF));
}

/// Positions of every score whose key is not below the threshold, ascending, and of some others:
/// one comparison of floats takes NaN of either sign, and both zeros, as not below.
void collect(const float* scores, int64_t length, int32_t threshold, Candidates& c) {
  const __m512 least = _mm512_set1_ps(score_of(threshold));
  const __m512i step = _mm512_set1_epi32(kLanes);
  __m512i position = lane_numbers();
  c.count = 0;
  int64_t i = 0;
  for (; i + kLanes <= length; i += kLanes) {
    prefetch_to_read(scores + i + kPrefetchBytes / 4);
    c.add(position, _mm512_cmp_ps_mask(_mm512_loadu_ps(scores + i), least, _CMP_NLT_UQ));
    position = _mm512_add_epi32(position, step);
  }
  const __mmask16 tail = first_lanes(length - i);
  c.add(position, _mm512_mask_cmp_ps_mask(tail, load16(scores + i, tail), least, _CMP_NLT_UQ));
}

/// Every position of the row.
void collect_all(int64_t length, Candidates& c) {
  const __m512i step = _mm512_set1_epi32(kLanes);
  __m512i position = lane_numbers();
  for (int64_t i = 0; i < length; i += kLanes) {
    _mm512_store_si512(c.positions + i, position);
    position = _mm512_add_epi32(position, step);
  }
  c.count = length;
}

/// Fetches the keys of the candidates; kLowestKey fills up the last vector.
void fetch_keys(const float* scores, Candidates& c) {
  const __m512i lowest = _mm512_set1_epi32(kLowestKey);
  __m512i highest = lowest;
  for (int64_t i = 0; i < c.count; i += kLanes) {
    const __mmask16 mask = first_lanes(c.count - i);
    const __m512i position = _mm512_maskz_loadu_epi32(mask, c.positions + i);
    const __m512 found =
        _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, position, scores, sizeof(float));
    const __m512i key = _mm512_mask_mov_epi32(lowest, mask, keys_of(found));
    highest = _mm512_max_epi32(highest, key);
    _mm512_store_si512(c.keys + i, key);
  }
  c.highest = _mm512_reduce_max_epi32(highest);
}

/// The lowest `count` set bits.
__mmask16 first_set(__mmask16 mask, int64_t count) {
  return static_cast<__mmask16>(_pdep_u32(first_lanes(count), mask));
}

/// Positions of all keys above the threshold and of the first `ties` equal to it.
void emit(const Candidates& c, int32_t threshold, int64_t ties, int32_t* out) {
  const __m512i limit = _mm512_set1_epi32(threshold);
  for (int64_t i = 0; i < c.vectors(); ++i) {
    const __m512i key = _mm512_load_si512(c.keys + i * kLanes);
    const __mmask16 equal = first_set(_mm512_cmpeq_epi32_mask(key, limit), ties);
    const __mmask16 taken = equal | _mm512_cmpgt_epi32_mask(key, limit);
    const int count = _mm_popcnt_u32(taken);
    const __m512i position = _mm512_load_si512(c.positions + i * kLanes);
    _mm512_mask_storeu_epi32(out, first_lanes(count), _mm512_maskz_compress_epi32(taken, position));
    ties -= _mm_popcnt_u32(equal);
    out += count;
  }
}

}  // namespace

void select_largest(const float* scores, int64_t length, int64_t k, int32_t* room, int32_t* out) {
  Candidates c{room, room + select_room(length) / 2};
  int32_t bound = kLowestKey;
  if (length >= kLeastSampledLength && k <= length / 4) {
    bound = lower_bound_from_sample(scores, length, k, room);
  }
  if (bound > kLowestKey) {
    collect(scores, length, bound, c);
    fetch_keys(scores, c);
    if (count_from(c.keys, c.vectors(), bound) < k) bound = kLowestKey;
  }
  if (bound == kLowestKey) {
    collect_all(length, c);
    fetch_keys(scores, c);
  }
  const int32_t key = find_threshold(c.keys, c.vectors(), bound, c.highest, k, k);
  const int64_t above = key == INT32_MAX ? 0 : count_from(c.keys, c.vectors(), key + 1);
  emit(c, key, k - above, out);
}

}  // namespace fathom::avx512
