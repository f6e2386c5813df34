#include "fathom/formats/minifloat.h"
#include "fathom/kernels/act/gated_act/silu_avx512.h"
#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/quant/amax_avx512.h"
#include "fathom/kernels/quant/group_quant/group_quant_rows.h"

namespace fathom::avx512 {
namespace {

/// How the quotients of a call become codes: known before the loop over values.
struct Recipe {
  GroupRecipe quotient;
  GroupLimits limits;
  bool clamps;  ///< E4M3 saturates by itself where the limits are its own
};

/// Of two operands one of which is NaN, min and max take the second.
inline __m512 clamp16(__m512 v, const GroupLimits& limits) {
  v = _mm512_max_ps(_mm512_set1_ps(limits.min), v);
  return _mm512_min_ps(_mm512_set1_ps(limits.max), v);
}

inline void store_codes(E4m3* q, __mmask16 mask, __m512 clamped) {
  store16(q, mask, clamped);
}

inline void store_codes(int8_t* q, __mmask16 mask, __m512 clamped) {
  const __mmask16 number = _mm512_cmp_ps_mask(clamped, clamped, _CMP_ORD_Q);
  const __m512i codes = _mm512_maskz_cvttps_epi32(number, clamped);
  _mm_mask_storeu_epi8(q, mask, _mm512_cvtepi32_epi8(codes));
}

/// What code_groups reads and writes: `count` groups of `size` values each, side by side. The
/// places of next_y and next_q are needed soon.
template <class Y, class Q>
struct Groups {
  const Y* y;
  const Y* next_y;
  Q* q;
  const Q* next_q;
  int64_t count;
  int64_t size;
};

/// Codes of the groups; finish(v, number) is the clamped quotient of v. One function for all of
/// them, so that its constants stay in registers.
template <class Y, class Q, class Finish>
void code_groups(const Groups<Y, Q>& groups, const float* numbers, Finish finish) {
  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t at = g * groups.size;
    const __m512 number = _mm512_set1_ps(numbers[g]);
    for_lanes(groups.size, [&](int64_t i, __mmask16 mask) {
      prefetch_to_read(groups.next_y + at + i);
      prefetch_to_write(groups.next_q + at + i);
      store_codes(groups.q + at + i, mask, finish(load16(groups.y + at + i, mask), number));
    });
  }
}

template <class Y, class Q>
void code_groups(const Groups<Y, Q>& groups, const float* numbers, const Recipe& recipe) {
  const GroupLimits limits = recipe.limits;
  const auto divided = [](__m512 v, __m512 number) { return _mm512_div_ps(v, number); };
  const auto multiplied = [](__m512 v, __m512 number) { return _mm512_mul_ps(v, number); };
  const bool divides = recipe.quotient == GroupRecipe::kDivide;
  if (divides && recipe.clamps) {
    code_groups(groups, numbers,
                [=](__m512 v, __m512 number) { return clamp16(divided(v, number), limits); });
  } else if (divides) {
    code_groups(groups, numbers, divided);
  } else if (recipe.clamps) {
    code_groups(groups, numbers,
                [=](__m512 v, __m512 number) { return clamp16(multiplied(v, number), limits); });
  } else {
    code_groups(groups, numbers, multiplied);
  }
}

/// y = round(round(silu(gate)) * up) of n values, and their largest magnitude.
template <class A>
float gate_values(
    const A* gate, const A* up, float* y, int64_t n, const A* next_gate, const A* next_up) {
  __m512 largest = _mm512_setzero_ps();
  for_lanes(n, [&](int64_t i, __mmask16 mask) {
    prefetch_to_read(next_gate + i);
    prefetch_to_read(next_up + i);
    const __m512 silu = rounded_to<A>(silu16(load16(gate + i, mask)));
    const __m512 v = rounded_to<A>(_mm512_mul_ps(silu, load16(up + i, mask)));
    largest = _mm512_max_ps(_mm512_abs_ps(v), largest);
    _mm512_mask_storeu_ps(y + i, mask, v);
  });
  return _mm512_reduce_max_ps(largest);
}

/// Groups whose scales are computed together.
constexpr int64_t kGroupsAtOnce = 16;

/// A token and one of the same expert that comes soon.
template <class A, class Q>
struct Token {
  const A* x;
  const A* next_x;
  Q* q;
  const Q* next_q;
};

/// Groups g .. g+count-1 of token t of expert e, in two passes over their values, which the
/// first-level cache holds.
template <class A, class Q>
void quantise_groups(const GroupQuantArgs& a,
                     const Recipe& recipe,
                     int64_t e,
                     int64_t t,
                     int64_t g,
                     int64_t count,
                     const Token<A, Q>& token) {
  const int64_t D = a.q.dim(2);
  const int64_t size = a.group_size;
  const bool plain = a.input == GroupInput::kPlain;
  float numbers[kGroupsAtOnce];
  alignas(64) float y[kMaxQuantGroup];  // the gated activation of count groups
  for (int64_t i = 0; i < count; ++i) {
    const A* x = token.x + (g + i) * size;
    const A* next_x = token.next_x + (g + i) * size;
    numbers[i] =
        plain ? amax(x, size) : gate_values(x, x + D, y + i * size, size, next_x, next_x + D);
  }
  scale_groups(a, recipe.limits, e, t, g, count, numbers);
  Q* q = token.q + g * size;
  const Q* next_q = token.next_q + g * size;
  if (plain) {
    code_groups<A, Q>({token.x + g * size, token.next_x + g * size, q, next_q, count, size},
                      numbers, recipe);
  } else {
    code_groups<float, Q>({y, y, q, next_q, count, size}, numbers, recipe);
  }
}

template <class A, class Q>
void group_quant_loop(const GroupQuantArgs& a, const Recipe& recipe, int64_t begin, int64_t end) {
  const int64_t T = a.x.dim(1);
  const int64_t G = a.q.dim(2) / a.group_size;
  const int64_t fit = kMaxQuantGroup / a.group_size;
  const int64_t at_once = fit < kGroupsAtOnce ? fit : kGroupsAtOnce;
  const int64_t ahead = rows_ahead(a.q.dim(2) * static_cast<int64_t>(sizeof(A)));
  for (int64_t row = begin; row < end; ++row) {
    const int64_t e = row / T;
    const int64_t t = row % T;
    if (t >= rows_of_expert(a, e)) continue;
    const int64_t next = t + ahead < T ? t + ahead : t;
    const Token<A, Q> token = {
        a.x.row<A>(e) + t * a.x.stride(1), a.x.row<A>(e) + next * a.x.stride(1),
        a.q.row<Q>(e) + t * a.q.stride(1), a.q.row<Q>(e) + next * a.q.stride(1)};
    for (int64_t g = 0; g < G; g += at_once)
      quantise_groups(a, recipe, e, t, g, G - g < at_once ? G - g : at_once, token);
  }
}

template <class A>
void group_quant_loop_from(const GroupQuantArgs& a, int64_t begin, int64_t end) {
  const GroupLimits limits = group_limits(a);
  if (a.q.format == Format::kE4m3) {
    const bool own = limits.min == -kE4m3Max && limits.max == kE4m3Max;
    return group_quant_loop<A, E4m3>(a, {a.recipe, limits, !own}, begin, end);
  }
  group_quant_loop<A, int8_t>(a, {a.recipe, limits, true}, begin, end);
}

}  // namespace

void group_quant_rows(const GroupQuantArgs& a, int64_t begin, int64_t end) {
  if (a.x.format == Format::kBf16) return group_quant_loop_from<Bf16>(a, begin, end);
  if (a.x.format == Format::kF16) return group_quant_loop_from<F16>(a, begin, end);
  group_quant_loop_from<float>(a, begin, end);
}

}  // namespace fathom::avx512
