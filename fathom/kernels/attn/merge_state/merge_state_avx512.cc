#include "fathom/kernels/attn/merge_state/merge_state_rows.h"
#include "fathom/kernels/core/elements_avx512.h"

namespace fathom::avx512 {
namespace {

/// A side without weight is not read: it may hold anything.
template <class A, class B, class O>
void merge_row(const MergedRow& m, const A* a, const B* b, O* o, int64_t D) {
  const __m512 share_a = _mm512_set1_ps(m.share_a);
  const __m512 share_b = _mm512_set1_ps(m.share_b);
  for (int64_t d = 0; d < D; d += kLanes) {
    const __mmask16 mask = first_lanes(D - d);
    __m512 sum = _mm512_setzero_ps();
    if (m.share_a != 0.0f) sum = _mm512_add_ps(sum, _mm512_mul_ps(share_a, load16(a + d, mask)));
    if (m.share_b != 0.0f) sum = _mm512_add_ps(sum, _mm512_mul_ps(share_b, load16(b + d, mask)));
    store16(o + d, mask, sum);
  }
}

template <class A, class B, class O>
void merge_loop(const MergeState::Args& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t n = 0; n < a.o.dim(1); ++n) {
      const MergedRow m = merge_lse(a.lse_a.row<float>(t)[n], a.lse_b.row<float>(t)[n], a.base);
      merge_row(m, a.o_a.row<A>(t) + n * a.o_a.stride(1), a.o_b.row<B>(t) + n * a.o_b.stride(1),
                a.o.row<O>(t) + n * a.o.stride(1), a.o.dim(2));
      a.lse.row<float>(t)[n] = m.lse;
    }
  }
}

/// Calls f(T{}) with the element type of a format: f32, bf16 or f16. (That of elements.h would be
/// compiled for AVX-512 here.)
template <class F>
void with_format(Format format, F&& f) {
  if (format == Format::kF32) return f(float{});
  if (format == Format::kBf16) return f(Bf16{});
  f(F16{});
}

}  // namespace

void merge_state_rows(const MergeState::Args& a, int64_t begin, int64_t end) {
  with_format(a.o_a.format, [&]<class A>(A) {
    with_format(a.o_b.format, [&]<class B>(B) {
      with_format(a.o.format, [&]<class O>(O) { merge_loop<A, B, O>(a, begin, end); });
    });
  });
}

}  // namespace fathom::avx512
