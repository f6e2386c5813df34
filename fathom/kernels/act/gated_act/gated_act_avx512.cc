#include "fathom/kernels/act/gated_act/gated_act_rows.h"
#include "fathom/kernels/core/elements_avx512.h"

namespace fathom::avx512 {
namespace {

template <class A>
void silu_mul_loop(const SiluMul::Args& a, int64_t begin, int64_t end) {
  const int64_t I = a.y.dim(1);
  for (int64_t t = begin; t < end; ++t) {
    const A* gate = a.x.row<A>(t);
    const A* up = gate + I;
    A* y = a.y.row<A>(t);
    for (int64_t i = 0; i < I; i += kLanes) {
      const __mmask16 mask = first_lanes(I - i);
      const __m512 z = load16(gate + i, mask);
      const __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), z));
      const __m512 silu = _mm512_div_ps(z, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
      store16(y + i, mask, _mm512_mul_ps(silu, load16(up + i, mask)));
    }
  }
}

}  // namespace

void silu_mul_rows(const SiluMul::Args& a, int64_t begin, int64_t end) {
  if (a.x.format == Format::kBf16) return silu_mul_loop<Bf16>(a, begin, end);
  silu_mul_loop<float>(a, begin, end);
}

}  // namespace fathom::avx512
