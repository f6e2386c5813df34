#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/spec/draft_tree/top_list.h"

namespace fathom::avx512 {
namespace {

constexpr int kUnroll = 4;  // comparisons that do not wait for each other

/// top_key of every lane.
__m512i keys_of(__m512 values) {
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  // -0 + 0 = 0.
  const __m512i bits = _mm512_castps_si512(_mm512_add_ps(values, _mm512_setzero_ps()));
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  constexpr int kXorOfAnd = 0x78;  // a ^ (b & c)
  const __m512i keys =
      _mm512_ternarylogic_epi32(bits, _mm512_srai_epi32(bits, 31), magnitude, kXorOfAnd);
  return _mm512_mask_mov_epi32(keys, nan, magnitude);
}

void offer_lanes(__m512i keys, __mmask16 lanes, int64_t first, TopList& list) {
  alignas(64) int32_t stored[kLanes];
  _mm512_store_si512(stored, keys);
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    list.offer({stored[lane], static_cast<int32_t>(first + lane)});
  }
}

}  // namespace

namespace {

/// The value of a key below that of NaN.
float value_of(int32_t key) {
  return __builtin_bit_cast(float, key ^ (key >> 31 & 0x7FFFFFFF));
}

}  // namespace

// Once the list is full, an element enters only with a key above the worst one: an equal key has a
// higher place than all that are in the list. One comparison of floats finds those and NaN.
template <class T>
void offer_piece(const T* row, int64_t first, int64_t count, TopList& list) {
  const int64_t end = first + count;
  int64_t v = first;
  for (; v < end && !list.full(); v += kLanes) {
    const __mmask16 mask = first_lanes(end - v);
    offer_lanes(keys_of(load16(row + v, mask)), mask, v, list);
  }
  constexpr int64_t kStep = kUnroll * kLanes;
  for (; v + kStep <= end && list.entries[0].key < INT32_MAX; v += kStep) {
    const __m512 worst = _mm512_set1_ps(value_of(list.entries[0].key));
    __mmask16 better[kUnroll];
    unsigned any = 0;
    for (int u = 0; u < kUnroll; ++u) {
      const __m512 values = load16(row + v + u * kLanes, 0xFFFF);
      better[u] = _mm512_cmp_ps_mask(values, worst, _CMP_NLE_UQ);
      any |= better[u];
    }
    if (any == 0) continue;
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = v + u * kLanes;
      offer_lanes(keys_of(load16(row + at, 0xFFFF)), better[u], at, list);
    }
  }
  if (list.entries[0].key == INT32_MAX) return;  // nothing but NaN, and these come first
  for (; v < end; v += kLanes) {
    const __mmask16 mask = first_lanes(end - v);
    offer_lanes(keys_of(load16(row + v, mask)), mask, v, list);
  }
}

template void offer_piece(const float* row, int64_t first, int64_t count, TopList& list);
template void offer_piece(const Bf16* row, int64_t first, int64_t count, TopList& list);
template void offer_piece(const F16* row, int64_t first, int64_t count, TopList& list);

}  // namespace fathom::avx512
