#include "fathom/kernels/act/gated_act/gated_act_rows.h"
#include "fathom/kernels/act/gated_act/silu_avx512.h"
#include "fathom/kernels/core/elements_avx512.h"

namespace fathom::avx512 {
namespace {

/// erfc(w) / 2 for w >= 0, within 4 units in the last place; NaN stays NaN.
///
/// (1 + 2w) e^(w^2) erfc(w) lies between 1 and 1.3 and is smooth in t = (w-3) / (w+3): a polynomial
/// of degree 8 (interpolation at Chebyshev nodes for w <= 10, relative error 9e-8). The form is
/// that of Shepherd and Laframboise, "Chebyshev approximation of (1+2x) exp(x^2) erfc x", 1981.
__m512 half_erfc16(__m512 w) {
  w = _mm512_min_ps(_mm512_set1_ps(10.5f), w);  // beyond, erfc is 0 in float32; NaN passes
  const __m512 above = _mm512_add_ps(w, _mm512_set1_ps(3.0f));
  const __m512 scale = _mm512_fmadd_ps(w, _mm512_set1_ps(2.0f), _mm512_set1_ps(1.0f));
  // One reciprocal serves t and 1 / (1 + 2w): 14 bits of the processor, doubled by Newton's step.
  const __m512 product = _mm512_mul_ps(above, scale);
  __m512 r = _mm512_rcp14_ps(product);
  r = _mm512_mul_ps(r, _mm512_fnmadd_ps(product, r, _mm512_set1_ps(2.0f)));
  const __m512 below = _mm512_sub_ps(w, _mm512_set1_ps(3.0f));
  const __m512 t = _mm512_mul_ps(below, _mm512_mul_ps(scale, r));
  // In pairs of coefficients (Estrin), because the chain of operations is what takes the time.
  const auto pair = [&t](float low, float high) {
    return _mm512_fmadd_ps(_mm512_set1_ps(high), t, _mm512_set1_ps(low));
  };
  const __m512 t2 = _mm512_mul_ps(t, t);
  const __m512 t4 = _mm512_mul_ps(t2, t2);
  const __m512 p03 =
      _mm512_fmadd_ps(pair(-0.0475677587f, 0.129658997f), t2, pair(1.25300813f, -0.135621756f));
  const __m512 p47 =
      _mm512_fmadd_ps(pair(-0.0242016651f, 0.00232340605f), t2, pair(-0.119190089f, 0.0682655126f));
  const __m512 p48 = _mm512_fmadd_ps(_mm512_set1_ps(0.00257753488f), t4, p47);
  const __m512 p = _mm512_fmadd_ps(p48, t4, p03);
  // e^-(h + l) = e^-h (1 - l), where h + l is the exact square.
  const __m512 h = _mm512_mul_ps(w, w);
  const __m512 l = _mm512_fmsub_ps(w, w, h);
  __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), h));
  e = _mm512_fnmadd_ps(e, l, e);
  const __m512 half_inverse = _mm512_mul_ps(_mm512_mul_ps(above, r), _mm512_set1_ps(0.5f));
  return _mm512_mul_ps(e, _mm512_mul_ps(p, half_inverse));
}

/// erfc(a / sqrt 2) / 2 for a >= 0 within 6e-6 of it, for results of 16 bits, in half the
/// operations.
///
/// e^(a^2/2) erfc(a / sqrt 2) / 2 = r H(r) with r = 1 / (a + 5), H of degree 6; e^-(a^2/2) as a
/// power of two, its fraction by degree 4 (both interpolated at Chebyshev nodes, a <= 14).
__m512 short_half_erfc16(__m512 a) {
  a = _mm512_min_ps(_mm512_set1_ps(14.5f), a);  // beyond, the value is 0 in float32; NaN passes
  const __m512 sum = _mm512_add_ps(a, _mm512_set1_ps(5.0f));
  __m512 r = _mm512_rcp14_ps(sum);
  r = _mm512_mul_ps(r, _mm512_fnmadd_ps(sum, r, _mm512_set1_ps(2.0f)));
  const auto next = [](__m512 p, __m512 x, float c) {
    return _mm512_fmadd_ps(p, x, _mm512_set1_ps(c));
  };
  __m512 h = _mm512_set1_ps(21731.2871f);
  for (const float c :
       {-5990.83789f, 1381.07349f, -74.6578522f, 16.3801422f, 1.78489172f, 0.401629388f})
    h = next(h, r, c);
  const __m512 y = _mm512_mul_ps(_mm512_mul_ps(a, a), _mm512_set1_ps(-0.72134752f));
  const __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(y, n);
  __m512 p = _mm512_set1_ps(0.00967603736f);
  for (const float c : {0.0559220351f, 0.240221068f, 0.693121016f, 1.00000012f})
    p = next(p, f, c);
  return _mm512_mul_ps(_mm512_mul_ps(h, r), _mm512_scalef_ps(p, n));
}

struct Silu {
  template <class A>
  static __m512 of(__m512 z) {
    return silu16(z);
  }
};

struct Gelu {
  template <class A>
  static __m512 of(__m512 z) {
    const __m512 magnitude = _mm512_abs_ps(z);
    __m512 share;
    if constexpr (sizeof(A) == 2) {
      share = short_half_erfc16(magnitude);
    } else {
      share = half_erfc16(_mm512_mul_ps(magnitude, _mm512_set1_ps(0.70710678f)));
    }
    const __mmask16 positive = _mm512_cmp_ps_mask(z, _mm512_setzero_ps(), _CMP_NLT_UQ);
    share = _mm512_mask_sub_ps(share, positive, _mm512_set1_ps(1.0f), share);
    return _mm512_mul_ps(z, share);
  }
};

struct GeluTanh {
  template <class A>
  static __m512 of(__m512 z) {
    const __m512 cubic = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(0.044715f), z), z);
    const __m512 sum = _mm512_fmadd_ps(cubic, z, z);
    const __m512 e = exp16(_mm512_mul_ps(_mm512_set1_ps(-1.59576912f), sum));
    return _mm512_div_ps(z, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
  }
};

template <class Act, class A>
void gate_loop(const SiluMul::Args& a, int64_t begin, int64_t end) {
  const int64_t I = a.y.dim(1);
  const int64_t ahead = rows_ahead(I * static_cast<int64_t>(sizeof(A)));
  const __m512 limit = _mm512_set1_ps(a.limit > 0.0f ? a.limit : __builtin_inff());
  const __m512 lowest = _mm512_sub_ps(_mm512_setzero_ps(), limit);
  for (int64_t t = begin; t < end; ++t) {
    const A* gate = a.x.row<A>(t);
    const A* up = gate + I;
    A* y = a.y.row<A>(t);
    const int64_t next = t + ahead < end ? t + ahead : t;
    const A* next_gate = a.x.row<A>(next);
    const A* next_y = a.y.row<A>(next);
    for_lanes(I, [&](int64_t i, __mmask16 mask) {
      prefetch_to_read(next_gate + i);
      prefetch_to_read(next_gate + I + i);
      prefetch_to_write(next_y + i);
      // In this order of operands NaN passes.
      const __m512 g = _mm512_min_ps(limit, load16(gate + i, mask));
      const __m512 u = _mm512_max_ps(lowest, _mm512_min_ps(limit, load16(up + i, mask)));
      store16(y + i, mask, _mm512_mul_ps(Act::template of<A>(g), u));
    });
  }
}

template <class Act>
void gate_rows(const SiluMul::Args& a, int64_t begin, int64_t end) {
  if (a.x.format == Format::kBf16) return gate_loop<Act, Bf16>(a, begin, end);
  if (a.x.format == Format::kF16) return gate_loop<Act, F16>(a, begin, end);
  gate_loop<Act, float>(a, begin, end);
}

}  // namespace

void silu_mul_rows(const SiluMul::Args& a, int64_t begin, int64_t end) {
  gate_rows<Silu>(a, begin, end);
}

void gelu_mul_rows(const GeluMul::Args& a, int64_t begin, int64_t end) {
  gate_rows<Gelu>(a, begin, end);
}

void gelu_tanh_mul_rows(const GeluTanhMul::Args& a, int64_t begin, int64_t end) {
  gate_rows<GeluTanh>(a, begin, end);
}

}  // namespace fathom::avx512
