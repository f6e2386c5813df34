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
    prefetch_to_write(out + i + kPrefetchBytes / 4);
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

void keep_and_scale(const float* p, float* y, int64_t count, float threshold, double mass) {
  const __m512 least = _mm512_set1_ps(threshold);
  const __m512 zero = _mm512_setzero_ps();
  const __m512d divisor = _mm512_set1_pd(mass);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    prefetch_to_write(y + i + kPrefetchBytes / 4);
    const __m512 value = _mm512_max_ps(load16(p + i, mask), zero);  // in this order NaN becomes 0
    const __mmask16 kept = _mm512_cmp_ps_mask(value, least, _CMP_GE_OQ);
    __m512 scaled = zero;
    if (kept != 0) {
      const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
      const __m512d high = _mm512_cvtps_pd(_mm512_maskz_extractf32x8_ps(0xFF, value, 1));
      const __m256 scaled_low = _mm512_cvtpd_ps(_mm512_div_pd(low, divisor));
      const __m256 scaled_high = _mm512_cvtpd_ps(_mm512_div_pd(high, divisor));
      scaled = _mm512_insertf32x8(_mm512_castps256_ps512(scaled_low), scaled_high, 1);
    }
    store16(y + i, mask, _mm512_maskz_mov_ps(kept, scaled));
  }
}

}  // namespace fathom::avx512
