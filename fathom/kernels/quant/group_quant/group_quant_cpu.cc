#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/quant/group_quant/group_quant.h"
#include "fathom/kernels/quant/group_quant/group_quant_rows.h"

namespace fathom {
namespace {

constexpr float kSmallestScale = std::numeric_limits<float>::min();

int64_t num_groups(const GroupQuantArgs& a) {
  return a.q.dim(2) / a.group_size;
}

/// y / number or y * number, within the limits; NaN stays NaN.
float quotient(float y, float number, GroupRecipe recipe, const GroupLimits& limits) {
  const float v = recipe == GroupRecipe::kDivide ? y / number : y * number;
  return std::clamp(v, limits.min, limits.max);
}

template <class Q>
Q code_of(float clamped) {
  return from_float<Q>(clamped);
}

template <>
int8_t code_of<int8_t>(float clamped) {
  return std::isnan(clamped) ? int8_t{0} : static_cast<int8_t>(clamped);  // toward zero
}

/// y[i] of a group that starts at x, whose up half lies `up` elements further.
template <class A>
float input_value(const A* x, int64_t i, int64_t up, GroupInput input) {
  const float gate = to_float(x[i]);
  if (input == GroupInput::kPlain) return gate;
  const float silu = to_float(from_float<A>(gate / (1.0f + std::exp(-gate))));
  return to_float(from_float<A>(silu * to_float(x[up + i])));
}

template <class A, class Q>
void group_quant_row(const GroupQuantArgs& a, int64_t e, int64_t t) {
  const int64_t D = a.q.dim(2);
  const A* x = a.x.row<A>(e) + t * a.x.stride(1);
  Q* q = a.q.row<Q>(e) + t * a.q.stride(1);
  const GroupLimits limits = group_limits(a);
  float y[kMaxQuantGroup];
  for (int64_t g = 0; g < num_groups(a); ++g) {
    const int64_t begin = g * a.group_size;
    float amax = 0.0f;
    for (int64_t i = 0; i < a.group_size; ++i) {
      y[i] = input_value(x + begin, i, D, a.input);
      amax = std::fmax(amax, std::fabs(y[i]));  // drops NaN
    }
    float number = amax;
    scale_groups(a, limits, e, t, g, 1, &number);
    for (int64_t i = 0; i < a.group_size; ++i)
      q[begin + i] = code_of<Q>(quotient(y[i], number, a.recipe, limits));
  }
}

template <class A, class Q>
void group_quant_loop(const GroupQuantArgs& a, int64_t begin, int64_t end) {
  const int64_t T = a.x.dim(1);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t e = row / T;
    if (row % T < rows_of_expert(a, e)) group_quant_row<A, Q>(a, e, row % T);
  }
}

void group_quant_rows_portable(const GroupQuantArgs& a, int64_t begin, int64_t end) {
  with_float_type(a.x.format, [&]<class A>(A) {
    a.q.format == Format::kE4m3 ? group_quant_loop<A, E4m3>(a, begin, end)
                                : group_quant_loop<A, int8_t>(a, begin, end);
  });
}

template <void (*Loop)(const GroupQuantArgs&, int64_t, int64_t)>
Status run_rows(Exec& ex, const GroupQuantArgs& a) {
  for_rows(ex, a.x.dim(0) * a.x.dim(1), 3 * a.x.dim(2),
           [&](int64_t begin, int64_t end) { Loop(a, begin, end); });
  return {};
}

// ---- what check() asks ----

Status check_groups(const GroupQuantArgs& a) {
  if (a.group_size < 1 || a.group_size > kMaxQuantGroup) {
    return invalid_argument(
        str_cat("group_size is ", a.group_size, " but must be 1..", kMaxQuantGroup));
  }
  const int64_t D = a.q.dim(2);
  if (D % a.group_size != 0) {
    return invalid_argument(
        str_cat("q[E,T,D] has D=", D, ", which group_size ", a.group_size, " does not divide"));
  }
  const int64_t J = a.input == GroupInput::kSiluMul ? 2 * D : D;
  if (a.x.dim(2) == J) return {};
  return invalid_argument(str_cat("x[E,T,J] has J=", a.x.dim(2), " but D=", D, " needs ", J,
                                  a.input == GroupInput::kSiluMul ? ", gate and up" : ""));
}

Status check_scales(const GroupQuantArgs& a) {
  const int64_t T = a.x.dim(1);
  const int64_t G = num_groups(a);
  const bool packed = a.layout == GroupScaleLayout::kPackedUe8m0;
  const Format format = packed ? Format::kI32 : Format::kF32;
  if (a.s.format != format) {
    return invalid_argument(
        str_cat("s is ", format_name(a.s.format), " but its layout is in ", format_name(format)));
  }
  if (packed && a.rounding != GroupScaleRounding::kPowerOfTwoUp) {
    return invalid_argument("packed scales hold powers of two only; round them up");
  }
  const bool row_major = a.layout == GroupScaleLayout::kRowMajor;
  const int64_t A = row_major ? T : packed ? ceil_div<int64_t>(G, 4) : G;
  const int64_t B = row_major ? G : T;
  if (a.s.dim(1) == A && a.s.dim(2) == B) return {};
  return invalid_argument(str_cat("s is ", describe(a.s), " but its layout needs [E, ", A, ", ", B,
                                  "] for ", T, " tokens of ", G, " groups"));
}

Status check_limits(const GroupQuantArgs& a) {
  if (!(a.eps > 0.0f) || std::isinf(a.eps)) {
    return invalid_argument(str_cat("eps is ", a.eps, " but must be finite and positive"));
  }
  const GroupLimits limits = group_limits(a);
  const bool fp8 = a.q.format == Format::kE4m3;
  const float least = fp8 ? -kE4m3Max : -128.0f;
  const float most = fp8 ? kE4m3Max : 127.0f;
  if (limits.min >= least && limits.min <= 0.0f && limits.max > 0.0f && limits.max <= most) {
    return {};
  }
  return invalid_argument(str_cat("codes of ", format_name(a.q.format), " are limited to ",
                                  limits.min, "..", limits.max, " but must lie in ", least, "..",
                                  most, " around 0"));
}

Status check_masked_rows(const GroupQuantArgs& a) {
  if (!a.masked_rows.present() || !a.masked_rows.readable()) return {};
  for (int64_t e = 0; e < a.masked_rows.dim(0); ++e) {
    const int64_t rows = rows_of_expert(a, e);
    if (rows >= 0 && rows <= a.x.dim(1)) continue;
    return invalid_argument(
        str_cat("masked_rows[", e, "] is ", rows, " but x has rows 0..", a.x.dim(1) - 1));
  }
  return {};
}

/// Rows that count, of all experts; all of them in a dry run.
int64_t counted_rows(const GroupQuantArgs& a) {
  if (a.masked_rows.present() && !a.masked_rows.readable()) return a.x.dim(0) * a.x.dim(1);
  int64_t rows = 0;
  for (int64_t e = 0; e < a.x.dim(0); ++e)
    rows += rows_of_expert(a, e);
  return rows;
}

}  // namespace

View as_one_expert(const View& v) {
  FATHOM_CHECK(v.rank == 2, str_cat("rows are ", describe(v)));
  View out = v;
  out.rank = 3;
  out.dims = {1, v.dim(0), v.dim(1), 0};
  out.strides = {v.dim(0) * v.stride(0), v.stride(0), v.stride(1), 0};
  return out;
}

GroupLimits group_limits(const GroupQuantArgs& a) {
  if (a.q_min != 0.0f || a.q_max != 0.0f) return {a.q_min, a.q_max};
  return a.q.format == Format::kE4m3 ? GroupLimits{-kE4m3Max, kE4m3Max}
                                     : GroupLimits{-128.0f, 127.0f};
}

int64_t rows_of_expert(const GroupQuantArgs& a, int64_t e) {
  return a.masked_rows.present() ? a.masked_rows.as<int32_t>()[e] : a.x.dim(1);
}

namespace {

void store_scale(const GroupQuantArgs& a, int64_t e, int64_t t, int64_t g, float scale) {
  switch (a.layout) {
    case GroupScaleLayout::kRowMajor:
      (a.s.row<float>(e) + t * a.s.stride(1))[g] = scale;
      break;
    case GroupScaleLayout::kColumnMajor:
      (a.s.row<float>(e) + g * a.s.stride(1))[t] = scale;
      break;
    case GroupScaleLayout::kPackedUe8m0: {
      auto* word = reinterpret_cast<uint32_t*>(a.s.row<int32_t>(e) + g / 4 * a.s.stride(1)) + t;
      const uint32_t before = g % 4 == 0 ? 0u : *word;
      *word = before | uint32_t{ue8m0_round_up(scale).bits} << (8 * (g % 4));
      break;
    }
  }
}

}  // namespace

void scale_groups(const GroupQuantArgs& a,
                  const GroupLimits& limits,
                  int64_t e,
                  int64_t t,
                  int64_t g,
                  int64_t count,
                  float* amax) {
  const bool divide = a.recipe == GroupRecipe::kDivide;
  const bool round_up = a.rounding == GroupScaleRounding::kPowerOfTwoUp;
  for (int64_t i = 0; i < count; ++i) {
    const float largest = std::max(amax[i], a.eps);
    float scale = divide ? largest / limits.max : largest * (1.0f / limits.max);
    scale = std::max(scale, kSmallestScale);
    if (round_up) scale = to_float(ue8m0_round_up(scale));
    store_scale(a, e, t, g + i, scale);
    if (divide) {
      amax[i] = scale;
    } else if (round_up) {
      amax[i] = 1.0f / scale;
    } else {
      amax[i] = limits.max / std::max(largest, limits.max * kSmallestScale);
    }
  }
}

Cost GroupQuantContract::cost(const Args& a) {
  const double per_value = a.input == GroupInput::kSiluMul ? 9.0 : 3.0;
  return {.flops = per_value * static_cast<double>(counted_rows(a) * a.q.dim(2))};
}

void GroupQuantContract::bytes(const Args& a, Cost& cost) {
  const int64_t rows = counted_rows(a);
  const bool packed = a.layout == GroupScaleLayout::kPackedUe8m0;
  const int64_t words = packed ? ceil_div<int64_t>(num_groups(a), 4) : num_groups(a);
  cost.bytes_read = rows * a.x.dim(2) * element_bytes(a.x.format);
  if (a.masked_rows.present()) cost.bytes_read += 4 * a.x.dim(0);
  cost.bytes_written = rows * (a.q.dim(2) + 4 * words);
}

Status GroupQuantContract::check(const Args& a) {
  FATHOM_TRY(check_groups(a));
  FATHOM_TRY(check_scales(a));
  FATHOM_TRY(check_limits(a));
  return check_masked_rows(a);
}

namespace {

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<GroupQuantFp8> group_quant_fp8_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_rows<avx512::group_quant_rows>},
    {"portable", Isa::kPortable, "", kTraits, run_rows<group_quant_rows_portable>},
};

constinit const VariantTable<GroupQuantInt8> group_quant_int8_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_rows<avx512::group_quant_rows>},
    {"portable", Isa::kPortable, "", kTraits, run_rows<group_quant_rows_portable>},
};

constinit const VariantTable<GroupQuant8Bit> group_quant_8bit_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_rows<avx512::group_quant_rows>},
    {"portable", Isa::kPortable, "", kTraits, run_rows<group_quant_rows_portable>},
};

}  // namespace fathom
