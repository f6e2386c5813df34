#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/mhc/mhc_post/mhc_post_rows.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"

namespace fathom::avx512 {
namespace {

/// All streams of 16 channels are in registers before the first is written. kStreams 0: any number.
template <int kStreams, class A>
void row(const MhcPostRow<A>& r) {
  const int64_t n = kStreams == 0 ? r.num_streams : kStreams;
  for_lanes(r.width, [&](int64_t d, __mmask16 mask) {
    __m512 x[kStreams == 0 ? kMaxStreams : kStreams];
#pragma GCC unroll 4
    for (int64_t j = 0; j < n; ++j)
      x[j] = load16(r.streams + j * r.stream_stride + d, mask);
    const __m512 y = load16(r.y + d, mask);
#pragma GCC unroll 4
    for (int64_t k = 0; k < n; ++k) {
      __m512 sum = _mm512_mul_ps(_mm512_set1_ps(r.post[k]), y);
#pragma GCC unroll 4
      for (int64_t j = 0; j < n; ++j) {
        const __m512 weight = _mm512_set1_ps(r.comb[j * r.comb_stride + k]);
        sum = _mm512_add_ps(sum, _mm512_mul_ps(weight, x[j]));
      }
      store16(r.out + k * r.out_stride + d, mask, sum);
    }
  });
}

}  // namespace

template <class A>
void mhc_post_row(const MhcPostRow<A>& r) {
  if (r.num_streams == 4) return row<4>(r);
  row<0>(r);
}

template void mhc_post_row(const MhcPostRow<Bf16>& r);
template void mhc_post_row(const MhcPostRow<float>& r);

}  // namespace fathom::avx512
