// What bounds mhc_pre, on one core of an EPYC with four streams of 7,168: for one token reading fn
// (2.75 MB, 71 GB/s out of the caches, 40 us); from eight tokens on the multiply-adds (83 GFLOP/s,
// 18 us a token). Sinkhorn's iteration is about 1 us of either.
#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_rows.h"

namespace fathom::avx512 {
namespace {

/// Products of kTokens tokens with kRows rows of fn, from token t and row q on; with the first rows
/// the sums of squares. At 3 tokens and 8 rows 27 accumulators are in registers, and a load of fn
/// feeds three of them.
template <int kTokens, int kRows, bool kSquares, class A>
void tile(const MhcPiece<A>& p, int64_t t, int64_t q) {
  const A* x = p.x + t * p.x_stride;
  const float* fn = p.fn + q * p.fn_stride;
  __m512 acc[kTokens][kRows];
  __m512 squares[kTokens];
#pragma GCC unroll 3
  for (int i = 0; i < kTokens; ++i) {
    squares[i] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      acc[i][r] = _mm512_setzero_ps();
  }
  for_lanes(p.width, [&](int64_t d, __mmask16 mask) {
    __m512 v[kTokens];
#pragma GCC unroll 3
    for (int i = 0; i < kTokens; ++i) {
      v[i] = load16(x + i * p.x_stride + d, mask);
      if constexpr (kSquares) squares[i] = _mm512_fmadd_ps(v[i], v[i], squares[i]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 f = load16(fn + r * p.fn_stride + d, mask);
#pragma GCC unroll 3
      for (int i = 0; i < kTokens; ++i)
        acc[i][r] = _mm512_fmadd_ps(f, v[i], acc[i][r]);
    }
  });
#pragma GCC unroll 3
  for (int i = 0; i < kTokens; ++i) {
    float* sums = p.sums + (t + i) * p.sums_stride;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      sums[q + r] = _mm512_reduce_add_ps(acc[i][r]);
    if constexpr (kSquares) sums[p.num_rows] = _mm512_reduce_add_ps(squares[i]);
  }
}

template <int kRows, bool kSquares, class A>
void rows_of_all_tokens(const MhcPiece<A>& p, int64_t q) {
  int64_t t = 0;
  for (; t + 3 <= p.num_tokens; t += 3)
    tile<3, kRows, kSquares>(p, t, q);
  if (p.num_tokens - t == 2) tile<2, kRows, kSquares>(p, t, q);
  if (p.num_tokens - t == 1) tile<1, kRows, kSquares>(p, t, q);
}

template <bool kSquares, class A>
int64_t some_rows(const MhcPiece<A>& p, int64_t q) {
  const int64_t left = p.num_rows - q;
  if (left >= 8) {
    rows_of_all_tokens<8, kSquares>(p, q);
    return 8;
  }
  if (left >= 4) {
    rows_of_all_tokens<4, kSquares>(p, q);
    return 4;
  }
  rows_of_all_tokens<1, kSquares>(p, q);
  return 1;
}

}  // namespace

template <class A>
void mhc_piece(const MhcPiece<A>& p) {
  int64_t q = some_rows<true>(p, 0);
  while (q < p.num_rows)
    q += some_rows<false>(p, q);
}

template <class A>
void mhc_mix(const MhcMix<A>& m) {
  for_lanes(m.width, [&](int64_t d, __mmask16 mask) {
    __m512 sum = _mm512_mul_ps(_mm512_set1_ps(m.weights[0]), load16(m.streams + d, mask));
    for (int64_t j = 1; j < m.num_streams; ++j) {
      const __m512 v = load16(m.streams + j * m.stride + d, mask);
      sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(m.weights[j]), v));
    }
    store16(m.y + d, mask, sum);
  });
}

template void mhc_piece(const MhcPiece<Bf16>& p);
template void mhc_piece(const MhcPiece<float>& p);
template void mhc_mix(const MhcMix<Bf16>& m);
template void mhc_mix(const MhcMix<float>& m);

}  // namespace fathom::avx512
