#include <cmath>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/rope/rope/rotate_avx512.h"
#include "fathom/kernels/sparse/hadamard/hadamard_rows.h"
#include "fathom/kernels/sparse/index_row.h"

namespace fathom::avx512 {
namespace {

void round_values(Format rounding, float* x, int64_t count) {
  if (rounding != Format::kBf16) return;
  for_lanes(count, [&](int64_t i, __mmask16 mask) {
    store16(x + i, mask, rounded_to<Bf16>(load16(x + i, mask)));
  });
}

/// The largest magnitude of n values; NaN is skipped.
float largest_magnitude(const float* x, int64_t n) {
  __m512 largest = _mm512_setzero_ps();
  for_lanes(n, [&](int64_t i, __mmask16 mask) {
    // The maximum is its second operand where one of them is NaN.
    largest = _mm512_max_ps(_mm512_abs_ps(load16(x + i, mask)), largest);
  });
  return _mm512_reduce_max_ps(largest);
}

float store_e4m3(const float* x, int64_t D, E4m3* codes) {
  const float scale = fp8_scale(largest_magnitude(x, D), kFp8V32DemoUe8m0);
  const __m512 divisor = _mm512_set1_ps(scale);
  for_lanes(D, [&](int64_t i, __mmask16 mask) {
    store16(codes + i, mask, _mm512_div_ps(load16(x + i, mask), divisor));
  });
  return scale;
}

/// Sixteen codes in the low nibbles of the lanes: as e2m1_from_float.
__m512i e2m1_codes(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  // The code of a magnitude counts the bounds below it; a tie goes to the even code.
  const __m512 magnitude = _mm512_abs_ps(v);
  const auto count = [&](__m512i code, float bound, auto compare) {
    const __mmask16 above = compare(magnitude, _mm512_set1_ps(bound));
    return _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(1));
  };
  // NaN is above every bound, which gives it the code of 6.
  const auto greater = [](__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); };
  const auto not_less = [](__m512 a, __m512 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); };
  __m512i code = _mm512_setzero_si512();
  code = count(code, 0.25f, greater);
  code = count(code, 0.75f, not_less);
  code = count(code, 1.25f, greater);
  code = count(code, 1.75f, not_less);
  code = count(code, 2.5f, greater);
  code = count(code, 3.5f, not_less);
  code = count(code, 5.0f, greater);
  const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
  const __m512i sign = _mm512_maskz_srli_epi32(number, bits, 28);
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  return _mm512_ternarylogic_epi32(code, sign, _mm512_set1_epi32(8), kOrAnd);
}

void store_e2m1(const float* x, int64_t D, uint8_t* codes, Ue8m0* scales) {
  for (int64_t begin = 0; begin < D; begin += kIndexScaleGroup) {
    const float* group = x + begin;
    const Ue8m0 scale = mxfp4_scale(largest_magnitude(group, kIndexScaleGroup), Mxfp4Rule::kCeil);
    scales[begin / kIndexScaleGroup] = scale;
    const __m512 divisor = _mm512_set1_ps(to_float(scale));
    for (int64_t i = 0; i < kIndexScaleGroup; i += kLanes) {
      const __m512i code = e2m1_codes(_mm512_div_ps(_mm512_loadu_ps(group + i), divisor));
      // In each 64 bits the even code in the low half, the odd one in the high half.
      const __m512i both = _mm512_or_si512(code, _mm512_srli_epi64(code, 28));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(codes + (begin + i) / 2),
                       _mm512_cvtepi64_epi8(both));
    }
  }
}

}  // namespace

void rotate_index_row(const IndexSteps& steps, const float* table_row, float* x) {
  const int64_t R = steps.rope_dim;
  float* rotated = steps.channels == RopeChannels::kFirst ? x : x + steps.width - R;
  rotate_head(rotated, rotated, table_row, R, steps.style);
  round_values(steps.rounding, rotated, R);
}

void transform_index_row(const IndexSteps& steps, float* x) {
  if (steps.transform == IndexTransform::kNone) return;
  const int64_t D = steps.width;
  alignas(64) float room[kMaxIndexWidth];
  hadamard_rows(
      HadamardRows<float>{.x = x,
                          .x_stride = D,
                          .y = x,
                          .y_stride = D,
                          .count = 1,
                          .width = D,
                          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(D))),
                          .room = room});
  round_values(steps.rounding, x, D);
}

float store_index_row(const IndexSteps& steps, const float* x, const IndexRowOut& out) {
  const int64_t D = steps.width;
  if (out.format == Format::kE4m3) return store_e4m3(x, D, static_cast<E4m3*>(out.values));
  if (out.format == Format::kU8) {
    store_e2m1(x, D, static_cast<uint8_t*>(out.values), out.group_scales);
    return 1.0f;
  }
  for_lanes(D, [&](int64_t i, __mmask16 mask) {
    const __m512 v = load16(x + i, mask);
    if (out.format == Format::kBf16) {
      store16(static_cast<Bf16*>(out.values) + i, mask, v);
    } else {
      store16(static_cast<float*>(out.values) + i, mask, v);
    }
  });
  return 1.0f;
}

}  // namespace fathom::avx512
