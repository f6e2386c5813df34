#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/sample/renorm/renorm_rows.h"

namespace fathom::avx512 {

double softmax_exp(const float* z, float max, float temperature, float* out, int64_t count) {
  const __m512 largest = _mm512_set1_ps(max);
  const __m512 divisor = _mm512_set1_ps(temperature);
  __m512d low = _mm512_setzero_pd();
  __m512d high = _mm512_setzero_pd();
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 value = load16(z + i, mask);
    const __mmask16 number = _mm512_mask_cmp_ps_mask(mask, value, value, _CMP_ORD_Q);
    const __m512 exponent = _mm512_div_ps(_mm512_sub_ps(value, largest), divisor);
    const __m512 e = _mm512_maskz_mov_ps(number, exp16(exponent));
    store16(out + i, mask, e);
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_maskz_extractf32x8_ps(0xFF, e, 1)));
  }
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}

void scale_row(float* row, float factor, int64_t count) {
  const __m512 f = _mm512_set1_ps(factor);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    store16(row + i, mask, _mm512_mul_ps(load16(row + i, mask), f));
  }
}

}  // namespace fathom::avx512
