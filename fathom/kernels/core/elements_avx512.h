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

/// Calls body(i, mask) for i = 0, 16, 32 .. below n. The mask of whole vectors is a constant, so
/// that the compiler drops it.
template <class Body>
inline void for_lanes(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    body(i, __mmask16{0xFFFF});
  if (i < n) body(i, first_lanes(n - i));
}

// ---- memory that is needed soon ----

/// Loops over rows that memory feeds ask for a place so far ahead: further than a core's own
/// prefetchers look across rows and pages, and near enough for the first-level cache.
inline constexpr int64_t kPrefetchBytes = 4096;

/// Rows of `row_bytes` to look ahead.
inline int64_t rows_ahead(int64_t row_bytes) {
  return row_bytes >= kPrefetchBytes || row_bytes <= 0 ? 1 : kPrefetchBytes / row_bytes;
}

inline void prefetch_to_read(const void* p) {
  __builtin_prefetch(p, 0);
}

/// Also keeps the store from waiting for the line.
inline void prefetch_to_write(const void* p) {
  __builtin_prefetch(p, 1);
}

// ---- loads: lanes outside the mask are 0 and their memory is not touched ----

inline __m512 load16(const float* p, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, p);
}

inline __m512 load16(const Bf16* p, __mmask16 mask) {
  const __m256i half = _mm256_maskz_loadu_epi16(mask, p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline __m512 load16(const F16* p, __mmask16 mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
}

// ---- stores: lanes outside the mask are not touched ----

/// The 16-bit code of each lane in its low half: nearest even, NaN made quiet (bf16_from_float).
inline __m512i bf16_codes(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i top = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40));
}

/// The same codes side by side. The processor's conversion flushes subnormal values to zero, and is
/// taken when there is none.
inline __m256i packed_bf16_codes(__m512 v) {
  constexpr int kSubnormal = 0x20;
  if (_mm512_fpclass_ps_mask(v, kSubnormal) != 0) [[unlikely]]
    return _mm512_cvtepi32_epi16(bf16_codes(v));
  return (__m256i)_mm512_cvtneps_pbh(v);
}

/// The 8-bit code of each lane in its low byte: nearest even, saturated, NaN 7F. As
/// round_magnitude<kExponentBits, kMantissaBits>: the adder rounds subnormal results, integer
/// addition the others.
template <int kExponentBits, int kMantissaBits, int kLargestCode>
inline __m512i minifloat_codes(__m512 v) {
  constexpr int kShift = 23 - kMantissaBits;
  constexpr int kRebias = 127 - ((1 << (kExponentBits - 1)) - 1);
  const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  // Just under half of the last place kept, and one more where that place is odd.
  const __m512i bias = _mm512_set1_epi32(((1 << (kShift - 1)) - 1) - (kRebias << 23));
  __m512i code = _mm512_add_epi32(magnitude, bias);
  const __mmask16 odd = _mm512_test_epi32_mask(magnitude, _mm512_set1_epi32(1 << kShift));
  code = _mm512_mask_add_epi32(code, odd, code, _mm512_set1_epi32(1));
  code = _mm512_srli_epi32(code, kShift);
  const __m512i magic = _mm512_set1_epi32((kRebias + 1 + kShift) << 23);
  const __m512 counted = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(magic));
  const __m512i min_normal = _mm512_set1_epi32((kRebias + 1) << 23);
  const __mmask16 subnormal = _mm512_cmplt_epu32_mask(magnitude, min_normal);
  code = _mm512_mask_sub_epi32(code, subnormal, _mm512_castps_si512(counted), magic);
  code =
      _mm512_mask_min_epu32(_mm512_set1_epi32(0x7F), number, code, _mm512_set1_epi32(kLargestCode));
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  return _mm512_ternarylogic_epi32(code, _mm512_maskz_srli_epi32(number, bits, 24),
                                   _mm512_set1_epi32(0x80), kOrAnd);
}

/// As e4m3_from_float.
inline __m512i e4m3_codes(__m512 v) {
  return minifloat_codes<4, 3, 0x7E>(v);
}

/// As e5m2_from_float.
inline __m512i e5m2_codes(__m512 v) {
  return minifloat_codes<5, 2, 0x7B>(v);
}

inline void store16(float* p, __mmask16 mask, __m512 v) {
  _mm512_mask_storeu_ps(p, mask, v);
}

inline void store16(Bf16* p, __mmask16 mask, __m512 v) {
  _mm256_mask_storeu_epi16(p, mask, packed_bf16_codes(v));
}

inline void store16(F16* p, __mmask16 mask, __m512 v) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm256_mask_storeu_epi16(p, mask, _mm512_cvtps_ph(v, kNearestEven));
}

inline void store16(E4m3* p, __mmask16 mask, __m512 v) {
  _mm_mask_storeu_epi8(p, mask, _mm512_cvtepi32_epi8(e4m3_codes(v)));
}

inline void store16(E5m2* p, __mmask16 mask, __m512 v) {
  _mm_mask_storeu_epi8(p, mask, _mm512_cvtepi32_epi8(e5m2_codes(v)));
}

/// v as the element type A would hold it.
template <class A>
__m512 rounded_to(__m512 v);

template <>
inline __m512 rounded_to<float>(__m512 v) {
  return v;
}

template <>
inline __m512 rounded_to<Bf16>(__m512 v) {
  const __m512i codes = _mm512_cvtepu16_epi32(packed_bf16_codes(v));
  return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 16));
}

template <>
inline __m512 rounded_to<F16>(__m512 v) {
  return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/// Each of v as the element type A would hold it.
template <class A>
inline void round_all(__m512 (&v)[4]) {
  for (__m512& one : v)
    one = rounded_to<A>(one);
}

template <>
inline void round_all<Bf16>(__m512 (&v)[4]) {
  constexpr int kSubnormal = 0x20;
  __mmask16 subnormal = 0;
  for (const __m512& one : v)
    subnormal |= _mm512_fpclass_ps_mask(one, kSubnormal);
  for (__m512& one : v) {
    const __m512i codes =
        subnormal != 0 ? bf16_codes(one) : _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(one));
    one = _mm512_castsi512_ps(_mm512_slli_epi32(codes, 16));
  }
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
