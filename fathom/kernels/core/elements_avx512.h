// Sixteen elements of a dense operand in a 512-bit vector of float32: loads, stores with the exact
// rounding of elements.h, and e^x. Included by _avx512.cc files only.
#pragma once

#include <cstdint>
#include <immintrin.h>

#include "fathom/formats/minifloat.h"

namespace fathom::avx512 {

inline constexpr int64_t kLanes = 16;

/// Lanes 0 .. count-1; count may be anything, all lanes from 16 on.
inline __mmask16 first_lanes(int64_t count) {
  if (count >= kLanes) return 0xFFFF;
  return count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1u << count) - 1u);
}

// ---- loads: lanes outside the mask are 0 and their memory is not touched ----

inline __m512 load16(const float* p, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, p);
}

inline __m512 load16(const Bf16* p, __mmask16 mask) {
  const __m256i half = _mm256_maskz_loadu_epi16(mask, p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// ---- stores: lanes outside the mask are not touched ----

/// The 16-bit code of each lane in its low half: nearest even, NaN made quiet (bf16_from_float).
/// vcvtneps2bf16 would flush subnormal values to zero.
inline __m512i bf16_codes(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i top = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40));
}

/// The 8-bit code of each lane in its low byte: nearest even, saturated (e4m3_from_float).
inline __m512i e4m3_codes(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  // As round_magnitude<4, 3>: the adder rounds subnormal results, integer addition the others.
  const __m512i magic = _mm512_set1_epi32((127 - 7 + 1 + 20) << 23);
  const __m512 counted = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(magic));
  const __m512i subnormal = _mm512_sub_epi32(_mm512_castps_si512(counted), magic);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, 20), _mm512_set1_epi32(1));
  const __m512i bias = _mm512_set1_epi32(((1 << 19) - 1) - ((127 - 7) << 23));
  __m512i code = _mm512_srli_epi32(_mm512_add_epi32(magnitude, _mm512_add_epi32(odd, bias)), 20);
  const __m512i min_normal = _mm512_set1_epi32((127 - 7 + 1) << 23);
  code = _mm512_mask_mov_epi32(code, _mm512_cmplt_epu32_mask(magnitude, min_normal), subnormal);
  code = _mm512_min_epu32(code, _mm512_set1_epi32(0x7E));
  code =
      _mm512_or_si512(code, _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80)));
  return _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                               _mm512_set1_epi32(0x7F));
}

inline void store16(float* p, __mmask16 mask, __m512 v) {
  _mm512_mask_storeu_ps(p, mask, v);
}

inline void store16(Bf16* p, __mmask16 mask, __m512 v) {
  _mm256_mask_storeu_epi16(p, mask, _mm512_cvtepi32_epi16(bf16_codes(v)));
}

inline void store16(E4m3* p, __mmask16 mask, __m512 v) {
  _mm_mask_storeu_epi8(p, mask, _mm512_cvtepi32_epi8(e4m3_codes(v)));
}

// ---- e^x ----

/// e^x within 1.5 units in the last place; 0 below -104 and infinity above 89; NaN stays NaN.
///
/// x = n ln 2 + f with |f| <= ln 2 / 2, ln 2 in two parts; e^f by the polynomial of degree 6 whose
/// greatest relative error, 1.9e-9, is the smallest there is (Remez).
inline __m512 exp16(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);  // in this order NaN passes
  x = _mm512_min_ps(_mm512_set1_ps(89.0f), x);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), x);
  f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), f);
  __m512 p = _mm512_set1_ps(0.00138367941638f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00837485706784f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0416682286806f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.166664196806f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.499999920561f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

}  // namespace fathom::avx512
