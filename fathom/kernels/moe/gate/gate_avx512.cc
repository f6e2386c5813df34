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
