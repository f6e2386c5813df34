// 256-bit vectors. Include vec.h instead.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "fathom/formats/minifloat.h"

namespace fathom::simd {

/// Eight float32 lanes; loads and stores need no alignment. `count` of the _first functions is
/// 0 to 8: what lies behind is not touched in memory.
struct Avx2 {
  using F32 = __m256;
  static constexpr int kWidth = 8;

  static F32 zero() { return _mm256_setzero_ps(); }

  static F32 splat(float value) { return _mm256_set1_ps(value); }

  static F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }

  /// a * b + c, rounded once.
  static F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }

  static F32 load(const float* p) { return _mm256_loadu_ps(p); }

  static F32 load(const Bf16* p) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  /// Further lanes are zero.
  static F32 load_first(const Bf16* p, int64_t count) {
    alignas(16) Bf16 block[kWidth] = {};
    std::memcpy(block, p, static_cast<size_t>(count) * sizeof(Bf16));
    return load(block);
  }

  static void store(float* p, F32 a) { _mm256_storeu_ps(p, a); }

  /// Rounds to nearest even.
  static void store(Bf16* p, F32 a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(a)); }

  static void store_first(float* p, F32 a, int64_t count) {
    _mm256_maskstore_ps(p, first(count), a);
  }

  static void store_first(Bf16* p, F32 a, int64_t count) {
    alignas(16) Bf16 block[kWidth];
    store(block, a);
    std::memcpy(p, block, static_cast<size_t>(count) * sizeof(Bf16));
  }

  /// Rounds to nearest even.
  static void store_first(F16* p, F32 a, int64_t count) {
    alignas(16) F16 block[kWidth];
    _mm_store_si128(reinterpret_cast<__m128i*>(block),
                    _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    std::memcpy(p, block, static_cast<size_t>(count) * sizeof(F16));
  }

 private:
  static __m256i first(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static F32 widen(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }

  static __m128i narrow(F32 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i lanes = _mm256_blendv_epi8(rounded, nan, is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  }
};

using Native = Avx2;

}  // namespace fathom::simd
