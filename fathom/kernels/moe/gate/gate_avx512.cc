#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/moe/gate/gate_rows.h"

namespace fathom::avx512 {
namespace {

// The largest value, NaN left out; -inf if there is none. max_ps gives its second operand where one
// of them is NaN.
float largest(const float* values, int64_t count) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 max = lowest;
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    max = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, mask, values + i), max);
  }
  return _mm512_reduce_max_ps(max);
}

}  // namespace

void gate_sigmoid(const float* z, float* out, int64_t count) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 zero = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 e = exp16(_mm512_sub_ps(zero, load16(z + i, mask)));
    store16(out + i, mask, _mm512_div_ps(one, _mm512_add_ps(one, e)));
  }
}

/// softplus(z) = max(z, 0) + log(1 + u) with u = e^-|z|, and log(1 + u) = 2 artanh(r) with
/// r = u / (2 + u) <= 1/3: its series up to r^15 leaves 5e-9 of the value.
void gate_sqrt_softplus(const float* z, float* out, int64_t count) {
  const __m512 zero = _mm512_setzero_ps();
  const __m512 two = _mm512_set1_ps(2.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 x = load16(z + i, mask);
    const __m512 u = exp16(_mm512_sub_ps(zero, _mm512_abs_ps(x)));
    const __m512 r = _mm512_div_ps(u, _mm512_add_ps(two, u));
    const __m512 r2 = _mm512_mul_ps(r, r);
    __m512 series = _mm512_set1_ps(1.0f / 15);
    for (const float c : {1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3})
      series = _mm512_fmadd_ps(series, r2, _mm512_set1_ps(c));
    const __m512 tail =
        _mm512_mul_ps(_mm512_mul_ps(two, r), _mm512_fmadd_ps(series, r2, _mm512_set1_ps(1.0f)));
    __m512 s = _mm512_sqrt_ps(_mm512_add_ps(_mm512_max_ps(zero, x), tail));
    // The root of an exponential that may itself be too small for a float32.
    const __mmask16 far = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kSoftplusIsExponential), _CMP_LT_OQ);
    s = _mm512_mask_mov_ps(s, far, exp16(_mm512_mul_ps(x, _mm512_set1_ps(0.5f))));
    store16(out + i, mask, s);
  }
}

void gate_softmax(const float* z, float* out, int64_t count) {
  const __m512 max = _mm512_set1_ps(largest(z, count));
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 e = exp16(_mm512_sub_ps(load16(z + i, mask), max));
    store16(out + i, mask, e);
    sum = _mm512_mask_add_ps(sum, mask, sum, e);
  }
  const __m512 total = _mm512_set1_ps(_mm512_reduce_add_ps(sum));
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    store16(out + i, mask, _mm512_div_ps(load16(out + i, mask), total));
  }
}

void gate_choice(const float* s, const float* beta, float* out, int64_t count) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 sum = _mm512_add_ps(load16(s + i, mask), load16(beta + i, mask));
    const __mmask16 nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
    store16(out + i, mask, _mm512_mask_mov_ps(sum, nan, lowest));
  }
}

int64_t gate_argmax(const float* values, int64_t count) {
  const __m512 max = _mm512_set1_ps(largest(values, count));
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    const __mmask16 at = _mm512_mask_cmp_ps_mask(mask, load16(values + i, mask), max, _CMP_EQ_OQ);
    if (at != 0) return i + __builtin_ctz(at);
  }
  return -1;
}

}  // namespace fathom::avx512
