// E4M3 weights in layout kRows16 to float32, for panel_loops.h.
#pragma once

#include <cstdint>

#include "fathom/kernels/cpu/products/tiles_avx2.h"

namespace fathom {

struct Fp8Quads : FloatTiles {
  /// Eight E4M3 codes in the low bytes of 32-bit lanes. Exponent and mantissa moved to their places
  /// in a float32 want a factor of 2^(127-7), which makes subnormals right as well; 7F is NaN.
  static F32 decode(__m256i codes) {
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7F));
    const __m256i sign = _mm256_slli_epi32(_mm256_andnot_si256(_mm256_set1_epi32(0x7F), codes), 24);
    const F32 value =
        V::mul(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), V::splat(0x1p120f));
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
    const __m256i nan = _mm256_and_si256(is_nan, _mm256_set1_epi32(0x7FC00000));
    return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_or_si256(sign, nan)));
  }

  /// Eight rows of one k: 16-bit lanes of the tile hold (k, k+1) or (k+2, k+3) of a row.
  static void decode_quad(const uint8_t* tile, float (*out)[16]) {
    const __m256i byte = _mm256_set1_epi32(0xFF);
    for (int half = 0; half < 2; ++half) {
      const __m256i codes = load_lanes(tile + half * 32);  // parts L = 2 half, 2 half + 1
      const __m256i first = _mm256_unpacklo_epi16(codes, _mm256_setzero_si256());
      const __m256i second = _mm256_unpackhi_epi16(codes, _mm256_setzero_si256());
      V::store(out[0] + half * 8, decode(_mm256_and_si256(first, byte)));
      V::store(out[1] + half * 8, decode(_mm256_srli_epi32(first, 8)));
      V::store(out[2] + half * 8, decode(_mm256_and_si256(second, byte)));
      V::store(out[3] + half * 8, decode(_mm256_srli_epi32(second, 8)));
    }
  }
};

}  // namespace fathom
