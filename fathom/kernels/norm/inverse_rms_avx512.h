// The root mean square of a row with AVX-512. Included by _avx512.cc files only. The same bits as
// inverse_rms_of(): squares are multiplied and added in two roundings, in its order.
#pragma once

#include "fathom/kernels/core/elements_avx512.h"

namespace fathom::avx512 {

/// 1 / sqrt(mean of squares + eps) of D values; value16(d, mask) gives elements d .. d+15.
template <class Value16>
inline float inverse_rms_of(int64_t D, float eps, Value16 value16) {
  __m512 partial[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                       _mm512_setzero_ps()};
  for (int64_t begin = 0; begin < D; begin += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) {  // lanes past D are zero and change nothing
      const int64_t d = begin + i * kLanes;
      const __m512 v = value16(d, first_lanes(D - d));
      partial[i] = _mm512_add_ps(partial[i], _mm512_mul_ps(v, v));
    }
  }
  const __m512 folded32 =
      _mm512_add_ps(_mm512_add_ps(partial[0], partial[2]), _mm512_add_ps(partial[1], partial[3]));
  const __m256 folded8 = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xFF, folded32, 0),
                                       _mm512_maskz_extractf32x8_ps(0xFF, folded32, 1));
  const __m128 folded4 =
      _mm_add_ps(_mm256_castps256_ps128(folded8), _mm256_extractf128_ps(folded8, 1));
  const __m128 folded2 = _mm_add_ps(folded4, _mm_movehl_ps(folded4, folded4));
  const __m128 sum = _mm_add_ss(folded2, _mm_movehdup_ps(folded2));
  const __m128 mean = _mm_div_ss(sum, _mm_set_ss(static_cast<float>(D)));
  const __m128 root = _mm_sqrt_ss(_mm_add_ss(mean, _mm_set_ss(eps)));
  return _mm_cvtss_f32(_mm_div_ss(_mm_set_ss(1.0f), root));
}

}  // namespace fathom::avx512
