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

// Half away from zero; NaN is 0. |v| <= 127 but for NaN.
inline __m128i int8_codes(__m512 v) {
  constexpr int kTruncate = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
  const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
  const __m512 whole = _mm512_roundscale_ps(v, kTruncate);
  const __m512 rest = _mm512_abs_ps(_mm512_sub_ps(v, whole));
  const __mmask16 away = _mm512_cmp_ps_mask(rest, _mm512_set1_ps(0.5f), _CMP_GE_OQ);
  const __m512 sign = _mm512_and_ps(v, _mm512_set1_ps(-0.0f));
  const __m512 one = _mm512_or_ps(sign, _mm512_set1_ps(1.0f));
  const __m512 rounded = _mm512_mask_add_ps(whole, away, whole, one);
  return _mm512_cvtepi32_epi8(_mm512_maskz_cvttps_epi32(number, rounded));
}

template <class A>
void token_quant_int8_loop(const TokenQuantInt8::Args& a, int64_t begin, int64_t end) {
  const int64_t D = a.x.dim(1);
  const int64_t ahead = rows_ahead(D * static_cast<int64_t>(sizeof(A)));
  for (int64_t t = begin; t < end; ++t) {
    const A* x = a.x.row<A>(t);
    int8_t* q = a.q.row<int8_t>(t);
    const int64_t next = t + ahead < end ? t + ahead : t;
    const int8_t* next_q = a.q.row<int8_t>(next);
    const A* next_x = a.x.row<A>(next);
    const Int8Row row = int8_row(amax(x, D));
    const __m512 factor = _mm512_set1_ps(row.factor);
    for_lanes(D, [&](int64_t d, __mmask16 mask) {
      prefetch_to_read(next_x + d);
      prefetch_to_write(next_q + d);
      const __m512 v = _mm512_mul_ps(load16(x + d, mask), factor);
      _mm_mask_storeu_epi8(q + d, mask, int8_codes(v));
    });
    store_int8_row(a, t, row.scale);
  }
}

template <class A>
void tensor_quant_loop(const TensorQuantFp8::Args& a, int64_t begin, int64_t end) {
  const int64_t D = a.x.dim(1);
  const int64_t ahead = rows_ahead(D * static_cast<int64_t>(sizeof(A)));
  const __m512 scale = _mm512_set1_ps(*a.s.as<float>());
  for (int64_t t = begin; t < end; ++t) {
    const A* x = a.x.row<A>(t);
    E4m3* q = a.q.row<E4m3>(t);
    const int64_t next = t + ahead < end ? t + ahead : t;
    const E4m3* next_q = a.q.row<E4m3>(next);
    const A* next_x = a.x.row<A>(next);
    for_lanes(D, [&](int64_t d, __mmask16 mask) {
      prefetch_to_read(next_x + d);
      prefetch_to_write(next_q + d);
      store16(q + d, mask, _mm512_div_ps(load16(x + d, mask), scale));
    });
  }
}

}  // namespace

void token_quant_int8_rows(const TokenQuantInt8::Args& a, int64_t begin, int64_t end) {
  if (a.x.format == Format::kBf16) return token_quant_int8_loop<Bf16>(a, begin, end);
  if (a.x.format == Format::kF16) return token_quant_int8_loop<F16>(a, begin, end);
  token_quant_int8_loop<float>(a, begin, end);
}

void tensor_quant_rows(const TensorQuantFp8::Args& a, int64_t begin, int64_t end) {
  if (a.x.format == Format::kBf16) return tensor_quant_loop<Bf16>(a, begin, end);
  if (a.x.format == Format::kF16) return tensor_quant_loop<F16>(a, begin, end);
  tensor_quant_loop<float>(a, begin, end);
}

void token_quant_rows(const TokenQuantFp8::Args& a, int64_t begin, int64_t end) {
  if (a.x.format == Format::kBf16) return token_quant_loop<Bf16>(a, begin, end);
  if (a.x.format == Format::kF16) return token_quant_loop<F16>(a, begin, end);
  token_quant_loop<float>(a, begin, end);
}

}  // namespace fathom::avx512
