#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/spec/verify_tree/residual_rows.h"

namespace fathom::avx512 {

void residual_row(const float* target, const float* draft, float* out, int64_t count) {
  const __m512 zero = _mm512_setzero_ps();
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    // In this order NaN becomes 0.
    const __m512 pi = _mm512_max_ps(load16(target + i, mask), zero);
    const __m512 delta = _mm512_max_ps(load16(draft + i, mask), zero);
    store16(out + i, mask, _mm512_max_ps(_mm512_sub_ps(pi, delta), zero));
  }
}

}  // namespace fathom::avx512
