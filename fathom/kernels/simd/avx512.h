// 512-bit vectors. Include vec.h instead.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "fathom/formats/minifloat.h"

namespace fathom::simd {

/// Sixteen float32 lanes; loads and stores need no alignment. `count` of the _first functions is
/// 0 to 16: further lanes are not touched in memory and read as zero.
struct Avx512 {
  using F32 = __m512;
  static constexpr int kWidth = 16;

  static F32 zero() { return _mm512_setzero_ps(); }

  static F32 splat(float value) { return _mm512_set1_ps(value); }

  static F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }

  static F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }

  static F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }

  static F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }

  static F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }

  /// a * b + c, rounded once.
  static F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }

  /// Sum of the lanes in a fixed order: halves are added until one lane is left.
  static float sum(F32 a) { return _mm512_reduce_add_ps(a); }

  static float max_lane(F32 a) { return _mm512_reduce_max_ps(a); }

  static F32 load(const float* p) { return _mm512_loadu_ps(p); }

  static F32 load(const Bf16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  static F32 load_first(const float* p, int64_t count) {
    return _mm512_maskz_loadu_ps(first(count), p);
  }

  static F32 load_first(const Bf16* p, int64_t count) {
    return widen(_mm256_maskz_loadu_epi16(first(count), p));
  }

  static void store(float* p, F32 a) { _mm512_storeu_ps(p, a); }

  /// Rounds to nearest even; subnormals become zero.
  static void store(Bf16* p, F32 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(a));
  }

  static void store_first(float* p, F32 a, int64_t count) {
    _mm512_mask_storeu_ps(p, first(count), a);
  }

  static void store_first(Bf16* p, F32 a, int64_t count) {
    _mm256_mask_storeu_epi16(p, first(count), narrow(a));
  }

  // ---- Pairs of bf16 in 32-bit lanes ----

  /// c + a[2i] * b[2i] + a[2i+1] * b[2i+1] in lane i. Subnormals are read as zero.
  static F32 dot_pairs(__m512i a, __m512i b, F32 c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
  }

  static __m512i load_pairs(const void* p) { return _mm512_loadu_si512(p); }

  /// The pair at p in every lane.
  static __m512i splat_pair(const void* p) {
    int pair;
    std::memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }

 private:
  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

  static F32 widen(__m256i bits) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  static __m256i narrow(F32 a) { return (__m256i)_mm512_cvtneps_pbh(a); }
};

using Native = Avx512;

}  // namespace fathom::simd
