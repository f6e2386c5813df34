// The rotation of one head with AVX-512, shared by the kernels that rotate. Included by _avx512.cc
// files only. Products and sums are rounded as in rotate_head(), so both give the same bits.
#pragma once

#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom::avx512 {

/// The elements of sixteen pairs.
struct Pairs16 {
  __m512 first;
  __m512 second;
};

// ---- adjacent elements: pair i is (p[2i], p[2i+1]); `pairs` masks pairs ----

inline Pairs16 load_adjacent(const Bf16* p, __mmask16 pairs) {
  const __m512i both = _mm512_maskz_loadu_epi32(pairs, p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-0x10000)))};
}

inline Pairs16 load_adjacent(const F16* p, __mmask16 pairs) {
  const __m512i both = _mm512_maskz_loadu_epi32(pairs, p);
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(both)),
          _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)))};
}

inline Pairs16 load_adjacent(const float* p, __mmask16 pairs) {
  const auto both = static_cast<uint32_t>(_pdep_u32(pairs, 0x55555555u) * 3u);
  const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(both), p);
  const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(both >> 16), p + kLanes);
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
}

inline void store_adjacent(Bf16* p, __mmask16 pairs, Pairs16 v) {
  const __m512i second = _mm512_slli_epi32(bf16_codes(v.second), 16);
  _mm512_mask_storeu_epi32(p, pairs, _mm512_or_si512(bf16_codes(v.first), second));
}

inline void store_adjacent(F16* p, __mmask16 pairs, Pairs16 v) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const __m512i first = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v.first, kNearestEven));
  const __m512i second = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v.second, kNearestEven));
  _mm512_mask_storeu_epi32(p, pairs, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
}

/// Codes of eight bits in the low bytes of the lanes.
inline void store_adjacent_bytes(void* p, __mmask16 pairs, __m512i first, __m512i second) {
  const __m512i both = _mm512_or_si512(first, _mm512_slli_epi32(second, 8));
  _mm256_mask_storeu_epi16(p, pairs, _mm512_cvtepi32_epi16(both));
}

inline void store_adjacent(E4m3* p, __mmask16 pairs, Pairs16 v) {
  store_adjacent_bytes(p, pairs, e4m3_codes(v.first), e4m3_codes(v.second));
}

inline void store_adjacent(E5m2* p, __mmask16 pairs, Pairs16 v) {
  store_adjacent_bytes(p, pairs, e5m2_codes(v.first), e5m2_codes(v.second));
}

inline void store_adjacent(float* p, __mmask16 pairs, Pairs16 v) {
  const auto both = static_cast<uint32_t>(_pdep_u32(pairs, 0x55555555u) * 3u);
  const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>(both),
                        _mm512_permutex2var_ps(v.first, low, v.second));
  _mm512_mask_storeu_ps(p + kLanes, static_cast<__mmask16>(both >> 16),
                        _mm512_permutex2var_ps(v.first, high, v.second));
}

// ---- what happens to a value before it is rounded: as in rope_loops.h ----

struct Unscaled {
  __m512 operator()(__m512 x) const { return x; }
};

struct DividedBy {
  float scale;

  __m512 operator()(__m512 x) const { return _mm512_div_ps(x, _mm512_set1_ps(scale)); }
};

struct MultipliedBy {
  float scale;

  __m512 operator()(__m512 x) const { return _mm512_mul_ps(x, _mm512_set1_ps(scale)); }
};

/// As fathom::rotate_head.
template <class Term = float, class In, class Out, class Table, class Finish = Unscaled>
void rotate_head(const In* in,
                 Out* out,
                 const Table* table_row,
                 int64_t R,
                 RopeStyle style,
                 Finish finish = {}) {
  const int64_t num_pairs = R / 2;
  for (int64_t i = 0; i < num_pairs; i += kLanes) {
    const __mmask16 mask = first_lanes(num_pairs - i);
    const __m512 c = load16(table_row + i, mask);
    const __m512 s = load16(table_row + num_pairs + i, mask);
    const Pairs16 x = style == RopeStyle::kInterleaved
                          ? load_adjacent(in + 2 * i, mask)
                          : Pairs16{load16(in + i, mask), load16(in + num_pairs + i, mask)};
    __m512 terms[4] = {_mm512_mul_ps(x.first, c), _mm512_mul_ps(x.second, s),
                       _mm512_mul_ps(x.second, c), _mm512_mul_ps(x.first, s)};
    round_all<Term>(terms);
    const Pairs16 y = {finish(_mm512_sub_ps(terms[0], terms[1])),
                       finish(_mm512_add_ps(terms[2], terms[3]))};
    if (style == RopeStyle::kInterleaved) {
      store_adjacent(out + 2 * i, mask, y);
    } else {
      store16(out + i, mask, y.first);
      store16(out + num_pairs + i, mask, y.second);
    }
  }
}

}  // namespace fathom::avx512
