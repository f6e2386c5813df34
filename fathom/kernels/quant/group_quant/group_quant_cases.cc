#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/quant/group_quant/group_quant.h"

namespace fathom {
namespace {

using Layout = GroupScaleLayout;

struct GroupShape {
  CaseSpec spec;
  int64_t t;
  int64_t d;
  int64_t group = 128;
  int64_t experts = 0;  ///< 0: one, without masked_rows
  Format format = Format::kBf16;
  Format q = Format::kE4m3;
  Layout layout = Layout::kRowMajor;
  GroupScaleRounding rounding = GroupScaleRounding::kNone;
  GroupRecipe recipe = GroupRecipe::kDivide;
  GroupInput input = GroupInput::kPlain;
  float q_max = 0;       ///< 0: that of the format
  bool aligned = false;  ///< columns of s at multiples of four
  int64_t row_gap = 0;

  int64_t groups() const { return d / group; }

  int64_t num_experts() const { return experts == 0 ? 1 : experts; }

  double largest() const { return q_max != 0 ? double{q_max} : q == Format::kE4m3 ? 448 : 127; }

  double least() const { return q_max != 0 ? -double{q_max} : q == Format::kE4m3 ? -448 : -128; }
};

double rounded(Format format, double x) {
  const auto single = static_cast<float>(x);
  if (format == Format::kBf16) return double{to_float(bf16_from_float(single))};
  if (format == Format::kF16) return double{to_float(f16_from_float(single))};
  return double{single};
}

/// What is quantised of a row, counted through all experts.
std::vector<double> input_row(const Tensor& x, const GroupShape& s, int64_t row) {
  std::vector<double> values = x.row(row);
  if (s.input == GroupInput::kPlain) return values;
  const auto D = static_cast<size_t>(s.d);
  for (size_t i = 0; i < D; ++i) {
    const double silu = rounded(s.format, values[i] / (1.0 + std::exp(-values[i])));
    values[i] = rounded(s.format, silu * values[D + i]);
  }
  values.resize(D);
  return values;
}

/// log2 of a rounded scale, or the scale.
struct ExactScale {
  double value;
  int exponent;
};

ExactScale exact_scale(const std::vector<double>& row, const GroupShape& s, int64_t g) {
  double amax = 1e-10;
  for (int64_t i = g * s.group; i < (g + 1) * s.group; ++i)
    amax = std::max(amax, std::fabs(row[static_cast<size_t>(i)]));
  const double scale = amax / s.largest();
  if (s.rounding == GroupScaleRounding::kNone) return {scale, 0};
  const int exponent = static_cast<int>(std::ceil(std::log2(scale)));
  return {std::ldexp(1.0, exponent), exponent};
}

double poison_of(Format format) {
  if (format == Format::kI8) return 0x7B;
  if (format == Format::kI32) return 0x7B7B7B7B;
  return std::numeric_limits<double>::quiet_NaN();
}

/// A fused activation is computed in float32 and may round to a neighbour of its format, which
/// moves the scale of a group by a step of that format.
constexpr double kFusedSlack = 0x1p-7;

Gate scale_gate(const GroupShape& s) {
  if (s.layout == Layout::kPackedUe8m0) return gates::exact();
  return {.rel = s.input == GroupInput::kPlain ? 0x1p-22 : kFusedSlack};
}

/// Half a step of E4M3: 2^-4 of the value, 2^-10 among the subnormals. A truncated int8 lies
/// between the quotient and the whole number toward zero, so half a unit from the middle.
Gate code_gate(const GroupShape& s) {
  const bool fused = s.input == GroupInput::kSiluMul;
  if (s.q == Format::kI8) return {.abs = fused ? 0.5 + 127 * kFusedSlack : 0.5001};
  return {.abs = 0x1.001p-10, .rel = fused ? 0x1p-4 + kFusedSlack : 0x1.001p-4};
}

double expected_code(double quotient, const GroupShape& s) {
  const double clamped = std::clamp(quotient, s.least(), s.largest());
  if (s.q == Format::kE4m3) return clamped;
  const double middle = std::max(0.0, std::fabs(clamped) - 0.5);
  return std::fabs(clamped) < 0.5 ? 0.0 : std::copysign(middle, clamped);
}

struct GroupTensors {
  Tensor x, masked_rows, q, s;
};

GroupTensors make_groups(CaseData& c, const GroupShape& s) {
  GroupTensors all;
  const int64_t E = s.num_experts();
  const int64_t J = s.input == GroupInput::kSiluMul ? 2 * s.d : s.d;
  // Row-major scales of one expert: rows can be cut from every operand.
  const bool cut = s.experts == 0 && s.layout == Layout::kRowMajor;
  if (cut) c.set_batch(s.t);
  const RowPlacement placed = {.row_gap = s.row_gap, .rows_per_batch = cut ? 1 : 0};
  const Dist dist = s.spec.bench ? Dist::kNormal : Dist::kMixedRows;  // a model has no zero rows
  all.x = c.input({E * s.t, J}, s.format, {.dist = dist, .scale = 2}, placed);
  if (s.experts > 0) {
    all.masked_rows = c.input({E}, Format::kI32);
    all.masked_rows.fill([&](int64_t e) { return e == 0 ? s.t : e == 1 ? 0 : e * 7 % (s.t + 1); });
  }
  all.q = c.output({E * s.t, s.d}, s.q, placed);
  const int64_t pad = s.aligned ? tma_aligned_stride(s.t) - s.t : 0;
  switch (s.layout) {
    case Layout::kRowMajor:
      all.s = c.output({E * s.t, s.groups()}, Format::kF32, {.rows_per_batch = cut ? 1 : 0});
      break;
    case Layout::kColumnMajor:
      all.s = c.output({E, s.groups(), s.t}, Format::kF32, {.row_gap = pad});
      break;
    case Layout::kPackedUe8m0:
      all.s = c.output({E, ceil_div<int64_t>(s.groups(), 4), s.t}, Format::kI32, {.row_gap = pad});
      break;
  }
  return all;
}

/// [E*T,D] as [E,T,D].
View by_expert(const View& v, const GroupShape& s) {
  if (v.rank == 3) return v;
  View out = as_one_expert(v);
  if (s.experts == 0) return out;
  out.dims = {s.experts, s.t, v.dim(1), 0};
  out.strides[0] = s.t * v.stride(0);
  return out;
}

bool counts(const GroupTensors& all, const GroupShape& s, int64_t row) {
  return s.experts == 0 || row % s.t < static_cast<int64_t>(all.masked_rows[row / s.t]);
}

void fill_scales(const GroupTensors& all, const GroupShape& s, std::span<double> out) {
  std::fill(out.begin(), out.end(), poison_of(all.s.format()));  // rows that do not count
  const int64_t G = s.groups();
  for (int64_t row = 0; row < all.x.dim(0); ++row) {
    if (!counts(all, s, row)) continue;
    const std::vector<double> values = input_row(all.x, s, row);
    const int64_t e = row / s.t;
    const int64_t t = row % s.t;
    for (int64_t g = 0; g < G; ++g) {
      const ExactScale scale = exact_scale(values, s, g);
      if (s.layout == Layout::kRowMajor) {
        out[static_cast<size_t>(row * G + g)] = scale.value;
      } else if (s.layout == Layout::kColumnMajor) {
        out[static_cast<size_t>((e * G + g) * s.t + t)] = scale.value;
      } else {
        double& word = out[static_cast<size_t>((e * ceil_div<int64_t>(G, 4) + g / 4) * s.t + t)];
        // The word is a signed number; the fourth exponent may set its sign.
        const auto before = static_cast<uint32_t>(g % 4 == 0 ? 0 : static_cast<int64_t>(word));
        const auto byte = static_cast<uint32_t>(scale.exponent + 127);
        word = static_cast<int32_t>(before | byte << (8 * (g % 4)));
      }
    }
  }
}

template <class K>
void add_group_case(CaseList& list, const GroupShape& s) {
  add_case<K>(list, s.spec, [s](CaseBuilder<K>& c) {
    const GroupTensors all = make_groups(c, s);
    c.bind([=](const Binding& at) {
      return GroupQuantArgs{.x = by_expert(at(all.x), s),
                            .masked_rows = at(all.masked_rows),
                            .q = by_expert(at(all.q), s),
                            .s = by_expert(at(all.s), s),
                            .group_size = s.group,
                            .q_min = -s.q_max,
                            .q_max = s.q_max,
                            .layout = s.layout,
                            .rounding = s.rounding,
                            .recipe = s.recipe,
                            .input = s.input};
    });
    c.expect_rows(all.q, code_gate(s), [=](int64_t row, std::span<double> out) {
      std::fill(out.begin(), out.end(), poison_of(s.q));
      if (!counts(all, s, row)) return;
      const std::vector<double> values = input_row(all.x, s, row);
      for (int64_t g = 0; g < s.groups(); ++g) {
        const double scale = exact_scale(values, s, g).value;
        for (int64_t i = g * s.group; i < (g + 1) * s.group; ++i) {
          const auto at = static_cast<size_t>(i);
          out[at] = expected_code(values[at] / scale, s);
        }
      }
    });
    c.expect_all(all.s, scale_gate(s), [=](std::span<double> out) { fill_scales(all, s, out); });
    if (s.experts > 0 || all.q.numel() < 4096) return;
    c.expect_full_precision(all.q, {.diff = 1e-3}, [=](int64_t row, int64_t col) {
      const std::vector<double> values = input_row(all.x, s, row);
      return values[static_cast<size_t>(col)] / exact_scale(values, s, col / s.group).value;
    });
  });
}

std::string flags_of(const GroupShape& s) {
  std::string out = str_cat("_", format_name(s.format));
  if (s.layout == Layout::kColumnMajor) out += s.aligned ? "_tma" : "_column_major";
  if (s.layout == Layout::kPackedUe8m0) out += "_ue8m0";
  if (s.rounding != GroupScaleRounding::kNone && s.layout != Layout::kPackedUe8m0) out += "_pow2";
  if (s.recipe == GroupRecipe::kMultiply) out += "_multiply";
  if (s.input == GroupInput::kSiluMul) out += "_silu";
  if (s.experts > 0) out += "_masked";
  return out;
}

template <class K>
void add_named(CaseList& list, GroupShape s) {
  s.spec.name = str_cat("t", s.t, "_d", s.d, "_g", s.group, s.q == Format::kI8 ? "_i8" : "_e4m3",
                        flags_of(s), s.q_max != 0 ? "_limited" : "");
  add_group_case<K>(list, s);
}

/// The layouts of the reference call, each with its rounding.
void for_each_layout(const GroupShape& base, const std::function<void(const GroupShape&)>& f) {
  GroupShape s = base;
  f(s);
  s.layout = Layout::kColumnMajor;
  f(s);
  s.aligned = true;
  f(s);
  s.rounding = GroupScaleRounding::kPowerOfTwoUp;
  f(s);
  s.layout = Layout::kPackedUe8m0;
  f(s);
  s = base;
  s.rounding = GroupScaleRounding::kPowerOfTwoUp;
  f(s);
}

template <class K>
void add_small_cases(CaseList& list, Format q) {
  for (int64_t t : {0, 1, 2, 3, 5, 61})
    add_named<K>(list, {.spec = {}, .t = t, .d = 640, .q = q, .row_gap = 3});
  for (int64_t group : {1, 3, 16, 32, 64, 100, 128, 256}) {
    add_named<K>(list, {.spec = {}, .t = 6, .d = 3 * group, .group = group, .q = q, .row_gap = 5});
  }
  add_named<K>(list, {.spec = {}, .t = 7, .d = 0, .q = q});
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (const GroupRecipe recipe : {GroupRecipe::kDivide, GroupRecipe::kMultiply}) {
      for_each_layout(
          {.spec = {}, .t = 7, .d = 96, .group = 16, .format = format, .q = q, .recipe = recipe},
          [&](const GroupShape& s) {
            add_named<K>(list, s);
            // A power of two is exact; one step of a fused bf16 product can move it by a factor 2.
            if (s.rounding != GroupScaleRounding::kNone) return;
            GroupShape fused = s;
            fused.input = GroupInput::kSiluMul;
            add_named<K>(list, fused);
            fused.experts = 5;
            add_named<K>(list, fused);
          });
    }
  }
  add_named<K>(list, {.spec = {}, .t = 9, .d = 128, .group = 64, .q = q, .q_max = 100});
  GroupShape packed{.spec = {},
                    .t = 6,
                    .d = 5 * 32,
                    .group = 32,
                    .experts = 4,
                    .q = q,
                    .layout = Layout::kPackedUe8m0,
                    .rounding = GroupScaleRounding::kPowerOfTwoUp,
                    .aligned = true};
  add_named<K>(list, packed);
}

template <class K>
void add_bench_cases(CaseList& list, Format q) {
  const auto add = [&](std::string_view name, GroupShape s) {
    s.spec = timed_spec(name, "input_quant", s.t);
    s.q = q;
    add_group_case<K>(list, s);
  };
  // What the reference takes for groups of 128 in its later versions.
  const auto column_major = [](int64_t t, int64_t d) {
    return GroupShape{.spec = {},
                      .t = t,
                      .d = d,
                      .layout = Layout::kColumnMajor,
                      .recipe = GroupRecipe::kMultiply,
                      .aligned = true};
  };
  for (int64_t t : {1, 8, 64, 128, 512, 1024}) {
    add("r1_hidden", column_major(t, 7168));
    add("r1_q_latent", column_major(t, 1536));
  }
  // 12,000 x 7,168 in and half as many bytes out: 264 MB with the scales, which no cache holds.
  add("r1_hidden_chunk", column_major(12000, 7168));
  GroupShape fused = column_major(26000, 2048);  // 266 MB
  fused.input = GroupInput::kSiluMul;
  add("r1_experts_silu_chunk", fused);
}

}  // namespace

void add_group_quant_cases(CaseList& list) {
  add_small_cases<GroupQuantFp8>(list, Format::kE4m3);
  add_small_cases<GroupQuantInt8>(list, Format::kI8);
  add_bench_cases<GroupQuantFp8>(list, Format::kE4m3);
  add_bench_cases<GroupQuantInt8>(list, Format::kI8);
  // The same code under a third name: both formats once.
  for (const Format q : {Format::kE4m3, Format::kI8}) {
    add_named<GroupQuant8Bit>(list, {.spec = {}, .t = 5, .d = 256, .q = q});
    add_named<GroupQuant8Bit>(
        list, {.spec = {}, .t = 5, .d = 256, .q = q, .layout = Layout::kColumnMajor});
  }
  add_bench_cases<GroupQuant8Bit>(list, Format::kE4m3);
}

}  // namespace fathom
