// 512-bit vectors. Include vec.h instead.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "fathom/formats/minifloat.h"

namespace fathom::simd {

/// Sixteen float32 lanes; loads and stores need no alignment. `count` of the _first functions is
/// 0 to 16: what lies behind is not touched in memory.
struct Avx512 {
  using F32 = __m512;
  static constexpr int kWidth = 16;

  static F32 zero() { return _mm512_setzero_ps(); }

  static F32 splat(float value) { return _mm512_set1_ps(value); }

  static F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }

  /// a * b + c, rounded once.
  static F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }

  static F32 load(const float* p) { return _mm512_loadu_ps(p); }

  static void store(float* p, F32 a) { _mm512_storeu_ps(p, a); }

  static void store_first(float* p, F32 a, int64_t count) {
    _mm512_mask_storeu_ps(p, first(count), a);
  }

  /// Rounds to nearest even; subnormals become zero.
  static void store_first(Bf16* p, F32 a, int64_t count) {
    _mm256_mask_storeu_epi16(p, first(count), narrow(a));
  }

  /// Rounds to nearest even.
  static void store_first(F16* p, F32 a, int64_t count) {
    _mm256_mask_storeu_epi16(p, first(count),
                             _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
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

  static __m256i narrow(F32 a) { return (__m256i)_mm512_cvtneps_pbh(a); }
};

using Native = Avx512;

}  // namespace fathom::simd
