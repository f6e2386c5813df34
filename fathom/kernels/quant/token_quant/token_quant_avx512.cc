#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/quant/amax_avx512.h"
#include "fathom/kernels/quant/token_quant/token_quant_rows.h"

namespace fathom::avx512 {
namespace {

template <class A>
void token_quant_loop(const TokenQuantFp8::Args& a, int64_t begin, int64_t end) {
  const int64_t D = a.x.dim(1);
  const int64_t ahead = rows_ahead(D * static_cast<int64_t>(sizeof(A)));
  for (int64_t t = begin; t < end; ++t) {
    const A* x = a.x.row<A>(t);
    E4m3* q = a.q.row<E4m3>(t);
    const int64_t next = t + ahead < end ? t + ahead : t;
    const E4m3* next_q = a.q.row<E4m3>(next);
    const A* next_x = a.x.row<A>(next);
    const float largest = amax(x, D);
    const float scale = token_scale(largest);
    *a.s.row<float>(t) = scale;
    const __m512 inverse = _mm512_set1_ps(largest == 0.0f ? 1.0f : 1.0f / scale);
    for_lanes(D, [&](int64_t d, __mmask16 mask) {
      prefetch_to_read(next_x + d);
      prefetch_to_write(next_q + d);
      store16(q + d, mask, _mm512_mul_ps(load16(x + d, mask), inverse));
    });
  }
}

}  // namespace

void token_quant_rows(const TokenQuantFp8::Args& a, int64_t begin, int64_t end) {
  if (a.x.format == Format::kBf16) return token_quant_loop<Bf16>(a, begin, end);
  if (a.x.format == Format::kF16) return token_quant_loop<F16>(a, begin, end);
  token_quant_loop<float>(a, begin, end);
}

}  // namespace fathom::avx512
