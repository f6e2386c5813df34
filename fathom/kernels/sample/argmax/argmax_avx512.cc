#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/sample/argmax/argmax_rows.h"

namespace fathom::avx512 {
namespace {

constexpr int kUnroll = 4;                          // comparisons that do not wait for each other
constexpr int kNanOrInfinity = 0x01 | 0x80 | 0x08;  // vfpclassps: quiet NaN, signalling NaN, +inf

struct Lanes {
  __m512 max;
  __m512i index;
};

// Replaces only where the value is larger, so a lane keeps the lowest index of its maximum, and a
// NaN replaces nothing.
void take(__m512 values, __m512i index, Lanes& lanes) {
  const __mmask16 larger = _mm512_cmp_ps_mask(values, lanes.max, _CMP_GT_OQ);
  lanes.max = _mm512_mask_mov_ps(lanes.max, larger, values);
  lanes.index = _mm512_mask_mov_epi32(lanes.index, larger, index);
}

void merge(const Lanes& from, Lanes& into) {
  const __mmask16 larger = _mm512_cmp_ps_mask(from.max, into.max, _CMP_GT_OQ);
  const __mmask16 earlier = _mm512_mask_cmplt_epi32_mask(
      _mm512_cmp_ps_mask(from.max, into.max, _CMP_EQ_OQ), from.index, into.index);
  const __mmask16 wins = larger | earlier;
  into.max = _mm512_mask_mov_ps(into.max, wins, from.max);
  into.index = _mm512_mask_mov_epi32(into.index, wins, from.index);
}

}  // namespace

RowPeak find_peak(const float* row, int64_t count) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  const __m512i step = _mm512_set1_epi32(kUnroll * 16);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  Lanes lanes[kUnroll];
  __m512i index[kUnroll];
  for (int u = 0; u < kUnroll; ++u) {
    index[u] = _mm512_add_epi32(lane, _mm512_set1_epi32(u * 16));
    // No index yet: larger than any, so that it loses against -inf lanes with an index.
    lanes[u] = {lowest, _mm512_set1_epi32(0x7FFFFFFF)};
  }
  __mmask16 unusable = 0;
  for (int64_t i = 0; i < count; i += kUnroll * kLanes) {
    for (int u = 0; u < kUnroll; ++u) {
      const __mmask16 mask = first_lanes(count - i - u * kLanes);
      prefetch_to_read(row + i + u * kLanes + kPrefetchBytes / 4);
      const __m512 values = _mm512_mask_loadu_ps(lowest, mask, row + i + u * kLanes);
      unusable |= _mm512_fpclass_ps_mask(values, kNanOrInfinity);
      take(values, index[u], lanes[u]);
      index[u] = _mm512_add_epi32(index[u], step);
    }
  }
  for (int u = 1; u < kUnroll; ++u)
    merge(lanes[u], lanes[0]);
  RowPeak peak;
  peak.unusable = unusable != 0;
  peak.max = _mm512_reduce_max_ps(lanes[0].max);
  const __mmask16 at = _mm512_cmp_ps_mask(lanes[0].max, _mm512_set1_ps(peak.max), _CMP_EQ_OQ);
  const int best = _mm512_mask_reduce_min_epi32(at, lanes[0].index);
  peak.index = best == 0x7FFFFFFF ? 0 : best;
  return peak;
}

}  // namespace fathom::avx512
