#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm_rows.h"

namespace fathom::avx512 {
namespace {

/// Squares are multiplied and added in two roundings, in the order of the portable variant, so that
/// both give the same bits. value16(d, mask) gives elements d .. d+15.
template <class Value16>
float inverse_rms(int64_t D, float eps, Value16 value16) {
  __m512 partial[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                       _mm512_setzero_ps()};
  for (int64_t begin = 0; begin < D; begin += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) {  // lanes past D are zero and change nothing
      const int64_t d = begin + i * kLanes;
      const __m512 v = value16(d, first_lanes(D - d));
      partial[i] = _mm512_add_ps(partial[i], _mm512_mul_ps(v, v));
    }
  }
  const __m512 folded32 =
      _mm512_add_ps(_mm512_add_ps(partial[0], partial[2]), _mm512_add_ps(partial[1], partial[3]));
  const __m256 folded8 = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xFF, folded32, 0),
                                       _mm512_maskz_extractf32x8_ps(0xFF, folded32, 1));
  const __m128 folded4 =
      _mm_add_ps(_mm256_castps256_ps128(folded8), _mm256_extractf128_ps(folded8, 1));
  const __m128 folded2 = _mm_add_ps(folded4, _mm_movehl_ps(folded4, folded4));
  const __m128 sum = _mm_add_ss(folded2, _mm_movehdup_ps(folded2));
  const __m128 mean = _mm_div_ss(sum, _mm_set_ss(static_cast<float>(D)));
  const __m128 root = _mm_sqrt_ss(_mm_add_ss(mean, _mm_set_ss(eps)));
  return _mm_cvtss_f32(_mm_div_ss(_mm_set_ss(1.0f), root));
}

/// next_x and next_y are rows that come soon.
template <class X, class W, class Y>
void rmsnorm_row(
    const X* x, const W* w, Y* y, int64_t D, float eps, const X* next_x, const Y* next_y) {
  const float r = inverse_rms(D, eps, [&](int64_t d, __mmask16 m) {
    prefetch_to_read(next_x + d);
    return load16(x + d, m);
  });
  for (int64_t d = 0; d < D; d += kLanes) {
    const __mmask16 mask = first_lanes(D - d);
    prefetch_to_write(next_y + d);
    const __m512 normed = _mm512_mul_ps(load16(x + d, mask), _mm512_set1_ps(r));
    store16(y + d, mask, _mm512_mul_ps(normed, load16(w + d, mask)));
  }
}

template <class A, class W>
void add_rmsnorm_row(const A* x,
                     A* h,
                     const W* w,
                     A* y,
                     int64_t D,
                     float eps,
                     const A* next_x,
                     const A* next_h,
                     const A* next_y) {
  const auto sum16 = [&](int64_t d, __mmask16 m) {
    return _mm512_add_ps(load16(h + d, m), load16(x + d, m));
  };
  const float r = inverse_rms(D, eps, [&](int64_t d, __mmask16 m) {
    prefetch_to_read(next_x + d);
    prefetch_to_write(next_h + d);
    return sum16(d, m);
  });
  for (int64_t d = 0; d < D; d += kLanes) {
    const __mmask16 mask = first_lanes(D - d);
    prefetch_to_write(next_y + d);
    const __m512 s = sum16(d, mask);
    store16(h + d, mask, s);
    const __m512 normed = _mm512_mul_ps(s, _mm512_set1_ps(r));
    store16(y + d, mask, _mm512_mul_ps(normed, load16(w + d, mask)));
  }
}

template <class X, class W, class Y>
void rmsnorm_loop(const RmsNorm::Args& a, int64_t begin, int64_t end) {
  const int64_t D = a.x.dim(1);
  const int64_t ahead = rows_ahead(D * static_cast<int64_t>(sizeof(X)));
  for (int64_t t = begin; t < end; ++t) {
    const int64_t next = t + ahead < end ? t + ahead : t;
    rmsnorm_row(a.x.row<X>(t), a.w.as<W>(), a.y.row<Y>(t), D, a.eps, a.x.row<X>(next),
                a.y.row<Y>(next));
  }
}

template <class A, class W>
void add_rmsnorm_loop(const AddRmsNorm::Args& a, int64_t begin, int64_t end) {
  const int64_t D = a.x.dim(1);
  const int64_t ahead = rows_ahead(D * static_cast<int64_t>(sizeof(A)));
  for (int64_t t = begin; t < end; ++t) {
    const int64_t next = t + ahead < end ? t + ahead : t;
    add_rmsnorm_row(a.x.row<A>(t), a.h.row<A>(t), a.w.as<W>(), a.y.row<A>(t), D, a.eps,
                    a.x.row<A>(next), a.h.row<A>(next), a.y.row<A>(next));
  }
}

/// Calls f with an element of that format.
template <class F>
void with_element(Format format, F f) {
  if (format == Format::kBf16) return f(Bf16{});
  if (format == Format::kF16) return f(F16{});
  f(float{});
}

}  // namespace

void rmsnorm_rows(const RmsNorm::Args& a, int64_t begin, int64_t end) {
  with_element(a.x.format, [&]<class X>(X) {
    with_element(a.w.format, [&]<class W>(W) {
      with_element(a.y.format, [&]<class Y>(Y) { rmsnorm_loop<X, W, Y>(a, begin, end); });
    });
  });
}

void add_rmsnorm_rows(const AddRmsNorm::Args& a, int64_t begin, int64_t end) {
  with_element(a.x.format, [&]<class A>(A) {
    with_element(a.w.format, [&]<class W>(W) { add_rmsnorm_loop<A, W>(a, begin, end); });
  });
}

}  // namespace fathom::avx512
