#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/conformance/call_tokens.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/rope/rope/rope_oracle.h"
#include "fathom/kernels/sparse/index_prepare/index_prepare.h"

namespace fathom {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- the steps in float64 ----

constexpr int64_t kTableRows = 97;

/// Whether steps round as the kernel does, or (gate B) not at all.
enum class Rounding { kAsFormat, kNone };

struct Model {
  RopeStyle style;
  RopeChannels channels;
  IndexTransform transform = IndexTransform::kHadamard;
};

constexpr Model kV32{RopeStyle::kHalfSplit, RopeChannels::kFirst};
constexpr Model kV4{RopeStyle::kInterleaved, RopeChannels::kLast};

void round_to(Format format, std::vector<double>& x) {
  for (double& v : x) {
    const auto single = static_cast<float>(v);
    v = format == Format::kBf16 ? double{to_float(bf16_from_float(single))} : v;
  }
}

/// Rotation and transform of a row whose format is `format`.
std::vector<double> exact_steps(std::vector<double> x,
                                const Model& model,
                                Format format,
                                const Tensor& table,
                                int64_t position,
                                Rounding rounding) {
  const int64_t R = table.dim(1);
  const auto D = static_cast<int64_t>(x.size());
  const int64_t first = model.channels == RopeChannels::kFirst ? 0 : D - R;
  const auto begin = x.begin() + first;
  std::vector<double> rotated(static_cast<size_t>(R));
  oracle::rotate({begin, begin + R}, table, position, model.style, rotated);
  std::copy(rotated.begin(), rotated.end(), begin);
  if (rounding == Rounding::kAsFormat) round_to(format, x);
  if (model.transform == IndexTransform::kNone) return x;
  std::vector<double> y(x.size(), 0.0);
  for (size_t i = 0; i < y.size(); ++i) {
    for (size_t j = 0; j < y.size(); ++j)
      y[i] += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
    y[i] /= std::sqrt(static_cast<double>(D));
  }
  if (rounding == Rounding::kAsFormat) round_to(format, y);
  return y;
}

std::vector<double> exact_norm(std::vector<double> x,
                               const Tensor& w,
                               const Tensor& b,
                               double eps,
                               Format format,
                               Rounding rounding) {
  const auto D = static_cast<double>(x.size());
  double mean = 0;
  for (double v : x)
    mean += v / D;
  double variance = 0;
  for (double v : x)
    variance += (v - mean) * (v - mean) / D;
  for (size_t d = 0; d < x.size(); ++d) {
    const auto i = static_cast<int64_t>(d);
    x[d] = (x[d] - mean) / std::sqrt(variance + eps) * w[i] + b[i];
  }
  if (rounding == Rounding::kAsFormat) round_to(format, x);
  return x;
}

/// 2^ceil(log2(a / largest)) with a = max(|x|), not below `floor`.
double power_of_two_scale(std::span<const double> x, double floor, double largest) {
  double a = floor;
  for (double v : x)
    a = std::max(a, std::fabs(v));
  int exponent = 0;
  const double fraction = std::frexp(a / largest, &exponent);  // in [0.5, 1)
  return std::ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
}

double e4m3_scale(const std::vector<double>& x) {
  return power_of_two_scale(x, 1e-4, 448);
}

double e2m1_scale(const std::vector<double>& x, int64_t group) {
  const auto begin = static_cast<size_t>(group * kIndexScaleGroup);
  return power_of_two_scale(std::span(x).subspan(begin, kIndexScaleGroup), 6 * 0x1p-126, 6);
}

// ---- gates ----

/// Of a stored row. Codes are compared with the exact quotient, from which they are half a step
/// away.
///
/// A float32 result next to a tie of bf16 may round the other way than the exact one. If that
/// happens before a transform, one of its 128 terms moves by a step of bf16 (2^-6 of values from 2
/// to 4), and all results by 0.088 of it: 1.4e-3, or 0.18 in units of the scale 2^-7 that such rows
/// have. One result in 10,000 is behind such a tie. Bits are held against the single kernels
/// elsewhere.
Gate stored_gate(Format in, Format out, bool wide_range) {
  const bool turns = in == Format::kBf16;
  // Half a step is 2^-4 of a code at most, and below 16 less than 0.5.
  if (out == Format::kE4m3 && turns) return {.abs = 0.5 + 0.18, .rel = 0x1p-4 + 0.18 / 16};
  if (out == Format::kE4m3) return {.abs = 0x1.05p-10, .rel = 0x1.1p-4};
  if (turns || out == Format::kBf16) return {.abs = 2e-3, .bf16_ulps = 1};
  // float32 sums of 128 terms, whose largest is a few, or some thousand in a row with one huge one.
  return {.abs = wide_range ? 2e-3 : 4e-6, .rel = 2e-6};
}

/// Says which e2m1 code of a row is more than half a step from x / scale: a quarter of the value or
/// of 1, whichever is larger, and a bit more as above.
std::string check_e2m1(const Tensor& codes,
                       const Tensor& scales,
                       int64_t row,
                       const std::vector<double>& x) {
  const auto D = static_cast<int64_t>(x.size());
  for (int64_t d = 0; d < D; ++d) {
    const int64_t group = d / kIndexScaleGroup;
    const double scale = scales[row * scales.dim(2) + group];
    const double expected_scale = e2m1_scale(x, group);
    if (scale != expected_scale)
      return str_cat("row ", row, " group ", group, ": scale ", scale, ", expected ",
                     expected_scale);
    const auto byte = static_cast<uint8_t>(codes[(row * D + d) / 2]);
    const double found = to_float(unpack_e2m1(&byte, d % 2));
    const double expected = x[static_cast<size_t>(d)] / scale;
    if (std::fabs(found - expected) <= 0.26 * std::max(1.0, std::fabs(expected))) continue;
    return str_cat("row ", row, " channel ", d, ": code of ", found, ", expected ", expected);
  }
  return "";
}

/// |x - y|^2 / (|x|^2 + |y|^2) of values that are not all zero.
class Difference {
 public:
  void add(double x, double y) {
    apart_ += (x - y) * (x - y);
    size_ += x * x + y * y;
  }

  std::string over(double limit) const {
    const double diff = size_ == 0 ? 0 : apart_ / size_;
    return diff <= limit ? "" : str_cat("against unquantised rows diff is ", diff, " > ", limit);
  }

 private:
  double apart_ = 0;
  double size_ = 0;
};

/// Gate B: the rounding of a bf16 is 1.3e-6 each of up to four times, e4m3 3e-4, e2m1 7e-3.
double full_precision_limit(Format in, Format out) {
  if (out == Format::kE4m3) return 6e-4;
  if (out == Format::kU8) return 1.4e-2;
  return in == Format::kF32 && out == Format::kF32 ? 1e-12 : 1e-5;
}

int64_t position_of(const std::optional<CallTokens>& of, int64_t t) {
  return of ? of->position(t) : (t * 37 + 5) % kTableRows;
}

// ---- queries ----

struct QueryShape {
  CaseSpec spec;
  int64_t tokens;
  int64_t heads;
  Format in = Format::kBf16;
  Format out = Format::kE4m3;
  Model model = kV32;
  int64_t width = 128;
  int64_t rope_dim = 64;
  Format weights = Format::kF32;
  Format positions = Format::kI32;
  Dist dist = Dist::kNormal;
  int64_t gap = 0;
  int64_t table_rows = kTableRows;
  std::optional<CallTokens> of = {};  ///< of a recorded call: where its tokens stand
};

void add_query(CaseList& list, const QueryShape& s) {
  add_case<IndexQuery>(list, s.spec, [s](CaseBuilder<IndexQuery>& c) {
    c.set_batch(s.tokens);
    const int64_t T = s.tokens;
    const int64_t H = s.heads;
    const RowPlacement rows{.row_gap = s.gap, .rows_per_batch = 1};
    const RowPlacement own{.rows_per_batch = 1};
    const Tensor q = c.input({T, H, s.width}, s.in, {.dist = s.dist}, rows);
    const Tensor positions = c.input({T}, s.positions, {}, own);
    positions.fill([&](int64_t t) { return position_of(s.of, t); });
    const Tensor table = c.input({s.table_rows, s.rope_dim}, Format::kF32);
    oracle::fill_rope_rows(table, positions);
    const Tensor w = c.input({T, H}, s.weights, {}, rows);
    const Tensor q_out = c.output({T, H, index_elements(s.out, s.width)}, s.out, rows);
    const bool groups = s.out == Format::kU8;
    const Tensor q_scales =
        groups ? c.output({T, H, s.width / kIndexScaleGroup}, Format::kUe8m0, rows) : Tensor();
    const Tensor w_out = c.output({T, H}, Format::kF32, own);
    const float weight_scale = 0.0110485f;
    c.bind([=](const Binding& at) {
      return IndexQuery::Args{.q = at(q),
                              .positions = at(positions),
                              .table = at(table),
                              .w = at(w),
                              .q_out = at(q_out),
                              .q_scales = at(q_scales),
                              .w_out = at(w_out),
                              .style = s.model.style,
                              .channels = s.model.channels,
                              .transform = s.model.transform,
                              .weight_scale = weight_scale};
    });
    const auto exact = [=](int64_t row, Rounding rounding) {
      return exact_steps(q.row(row), s.model, s.in, table, static_cast<int64_t>(positions[row / H]),
                         rounding);
    };
    const auto row_scale = [=](const std::vector<double>& x) {
      return s.out == Format::kE4m3 ? e4m3_scale(x) : 1.0;
    };
    const bool wide_range = s.dist == Dist::kMixedRows;
    if (!groups) {
      c.expect_rows(q_out, stored_gate(s.in, s.out, wide_range),
                    [=](int64_t row, std::span<double> out) {
                      const std::vector<double> x = exact(row, Rounding::kAsFormat);
                      const double scale = row_scale(x);
                      for (size_t d = 0; d < out.size(); ++d)
                        out[d] = x[d] / scale;
                    });
    }
    c.expect_rows(w_out, {.rel = 2e-7}, [=](int64_t t, std::span<double> out) {
      for (int64_t h = 0; h < H; ++h) {
        out[static_cast<size_t>(h)] =
            w.at(t, h) * double{weight_scale} * row_scale(exact(t * H + h, Rounding::kAsFormat));
      }
    });
    c.expect_that([=] {
      Difference difference;
      const int64_t step = std::max<int64_t>(1, T * H / 512);
      for (int64_t row = 0; row < T * H; row += step) {
        const std::vector<double> x = exact(row, Rounding::kAsFormat);
        const std::vector<double> plain = exact(row, Rounding::kNone);
        if (groups) {
          const std::string wrong = check_e2m1(q_out, q_scales, row, x);
          if (!wrong.empty()) return wrong;
        }
        for (int64_t d = 0; d < s.width; ++d) {
          double found = 0;
          if (groups) {
            const auto byte = static_cast<uint8_t>(q_out[(row * s.width + d) / 2]);
            found = to_float(unpack_e2m1(&byte, d % 2)) *
                    q_scales[row * q_scales.dim(2) + d / kIndexScaleGroup];
          } else {
            found = q_out[row * s.width + d] * row_scale(x);
          }
          difference.add(found, plain[static_cast<size_t>(d)]);
        }
      }
      return wide_range ? std::string() : difference.over(full_precision_limit(s.in, s.out));
    });
  });
}

// ---- keys ----

struct KeyShape {
  CaseSpec spec;
  int64_t tokens;
  Format in = Format::kBf16;
  Format out = Format::kE4m3;
  Model model = kV32;
  int64_t width = 128;
  int64_t rope_dim = 64;
  Format weights = Format::kF32;
  int64_t page_size = 64;
  Dist dist = Dist::kNormal;
  int64_t pages = 0;  ///< 0: twice as many as the tokens fill, and more
  int64_t gap = 3;    ///< of k
  int64_t table_rows = kTableRows;
  std::optional<CallTokens> of = {};  ///< of a recorded call: where its tokens stand
};

void add_key(CaseList& list, const KeyShape& s) {
  add_case<IndexKeyWrite>(list, s.spec, [s](CaseBuilder<IndexKeyWrite>& c) {
    const int64_t T = s.tokens;
    const int64_t D = s.width;
    const int64_t pages = s.pages > 0 ? s.pages : 2 * T / s.page_size + 2;
    const int64_t num_slots = pages * s.page_size;
    c.set_batch(T);
    const Tensor k =
        c.input({T, D}, s.in, {.dist = s.dist}, {.row_gap = s.gap, .rows_per_batch = 1});
    const Tensor norm_w = c.input({D}, s.weights, {.scale = 0.2, .offset = 1.0});
    const Tensor norm_b = c.input({D}, s.weights, {.scale = 0.3});
    const Tensor positions = c.input({T}, Format::kI32, {}, {.rows_per_batch = 1});
    positions.fill([&](int64_t t) { return position_of(s.of, t); });
    const Tensor table = c.input({s.table_rows, s.rope_dim}, Format::kF32);
    oracle::fill_rope_rows(table, positions);
    const Tensor slots = c.input({T}, Format::kI64, {}, {.rows_per_batch = 1});
    const int64_t step = num_slots >= 2 * T ? 2 : 1;
    slots.fill([&](int64_t t) { return !s.of && t == 2 ? -1 : num_slots - 1 - step * t; });
    const bool groups = s.out == Format::kU8;
    const Tensor values = c.output({pages, s.page_size, index_elements(s.out, D)}, s.out,
                                   {.row_gap = groups && !s.of ? 4 : 0});
    Tensor scales;
    if (groups) scales = c.output({pages, s.page_size, D / kIndexScaleGroup}, Format::kUe8m0);
    if (s.out == Format::kE4m3) scales = c.output({pages, s.page_size, 1}, Format::kF32);
    constexpr float kEps = 1e-6f;
    c.bind([=](const Binding& at) {
      return IndexKeyWrite::Args{.k = at(k),
                                 .norm_w = at(norm_w),
                                 .norm_b = at(norm_b),
                                 .positions = at(positions),
                                 .table = at(table),
                                 .slots = at(slots),
                                 .values = at(values),
                                 .scales = at(scales),
                                 .eps = kEps,
                                 .style = s.model.style,
                                 .channels = s.model.channels,
                                 .transform = s.model.transform};
    });
    const auto exact = [=](int64_t t, Rounding rounding) {
      const std::vector<double> normed =
          exact_norm(k.row(t), norm_w, norm_b, double{kEps}, s.in, rounding);
      return exact_steps(normed, s.model, s.in, table, static_cast<int64_t>(positions[t]),
                         rounding);
    };
    // The token of a slot, or -1.
    const auto token_of = [=](int64_t slot) {
      for (int64_t t = 0; t < T; ++t) {
        if (static_cast<int64_t>(slots[t]) == slot) return t;
      }
      return int64_t{-1};
    };
    if (!groups) {
      c.expect_rows(values, stored_gate(s.in, s.out, false),
                    [=](int64_t slot, std::span<double> out) {
                      std::fill(out.begin(), out.end(), kNan);  // not written
                      const int64_t t = token_of(slot);
                      if (t < 0) return;
                      const std::vector<double> x = exact(t, Rounding::kAsFormat);
                      const double scale = s.out == Format::kE4m3 ? e4m3_scale(x) : 1.0;
                      for (size_t d = 0; d < out.size(); ++d)
                        out[d] = x[d] / scale;
                    });
    }
    if (scales.present()) {
      c.expect_rows(scales, gates::exact(), [=](int64_t slot, std::span<double> out) {
        std::fill(out.begin(), out.end(), kNan);
        const int64_t t = token_of(slot);
        if (t < 0) return;
        const std::vector<double> x = exact(t, Rounding::kAsFormat);
        for (size_t g = 0; g < out.size(); ++g)
          out[g] = groups ? e2m1_scale(x, static_cast<int64_t>(g)) : e4m3_scale(x);
      });
    }
    c.expect_that([=] {
      Difference difference;
      for (int64_t t = 0; t < T; ++t) {
        const auto slot = static_cast<int64_t>(slots[t]);
        if (slot < 0) continue;
        if (groups) {
          const std::string wrong = check_e2m1(values, scales, slot, exact(t, Rounding::kAsFormat));
          if (!wrong.empty()) return wrong;
        }
        const std::vector<double> plain = exact(t, Rounding::kNone);
        for (int64_t d = 0; d < D; ++d) {
          double found = 0;
          if (groups) {
            const auto byte = static_cast<uint8_t>(values[(slot * D + d) / 2]);
            found = to_float(unpack_e2m1(&byte, d % 2)) *
                    scales[slot * scales.dim(2) + d / kIndexScaleGroup];
          } else {
            found = values[slot * D + d] * (scales.present() ? scales[slot] : 1.0);
          }
          difference.add(found, plain[static_cast<size_t>(d)]);
        }
      }
      return difference.over(full_precision_limit(s.in, s.out));
    });
  });
}

std::string_view name_of(const Model& model) {
  const bool hadamard = model.transform == IndexTransform::kHadamard;
  if (model.channels == RopeChannels::kFirst) return hadamard ? "v32" : "v32_plain";
  return hadamard ? "v4" : "v4_plain";
}

constexpr Format kOuts[] = {Format::kF32, Format::kBf16, Format::kE4m3, Format::kU8};

void add_query_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 7})
    add_query(list, {.spec = {.name = str_cat("t", t, "_h5")}, .tokens = t, .heads = 5, .gap = 3});
  for (Model model : {kV32, kV4}) {
    for (IndexTransform transform : {IndexTransform::kHadamard, IndexTransform::kNone}) {
      model.transform = transform;
      for (Format in : {Format::kBf16, Format::kF32}) {
        for (Format out : kOuts) {
          const std::string name =
              str_cat(name_of(model), "_", format_name(in), "_", format_name(out));
          add_query(list, {.spec = {.name = name},
                           .tokens = 6,
                           .heads = 4,
                           .in = in,
                           .out = out,
                           .model = model,
                           .weights = in,
                           .positions = in == Format::kF32 ? Format::kI64 : Format::kI32,
                           .gap = 2});
        }
      }
    }
  }
  for (int64_t d : {2, 4, 8, 16, 32, 64, 256, 512, 1024}) {
    add_query(list, {.spec = {.name = str_cat("width", d)},
                     .tokens = 3,
                     .heads = 3,
                     .model = kV4,
                     .width = d,
                     .rope_dim = d < 8 ? 2 : d / 4 * 2});
  }
  Model odd = kV32;
  odd.transform = IndexTransform::kNone;
  for (int64_t d : {1, 3, 17, 37, 100}) {
    add_query(list, {.spec = {.name = str_cat("width", d, "_plain")},
                     .tokens = 3,
                     .heads = 3,
                     .in = Format::kF32,
                     .out = Format::kBf16,
                     .model = odd,
                     .width = d,
                     .rope_dim = d / 3 * 2});
  }
  for (Format out : {Format::kF32, Format::kE4m3, Format::kU8}) {
    add_query(list, {.spec = {.name = str_cat("mixed_rows_", format_name(out))},
                     .tokens = 5,
                     .heads = 6,
                     .in = Format::kF32,
                     .out = out,
                     .dist = Dist::kMixedRows});
  }
  for (int64_t t : {1, 64, 2048}) {
    const auto spec = [&](std::string_view model) {
      return CaseSpec{.name = str_cat(model, "_t", t),
                      .op = "index_query",
                      .bench = true,
                      .phase = phase_of_case(true, t),
                      .columns = str_cat("M=", t, ";D=128")};
    };
    add_query(list, {.spec = spec("v32"), .tokens = t, .heads = 64});
    add_query(list,
              {.spec = spec("v4"), .tokens = t, .heads = 64, .out = Format::kU8, .model = kV4});
  }
}

void add_key_cases(CaseList& list) {
  for (int64_t page_size : {1, 3, 64}) {
    for (int64_t t : {0, 1, 2, 3, 7, 33}) {
      add_key(list, {.spec = {.name = str_cat("t", t, "_page", page_size)},
                     .tokens = t,
                     .page_size = page_size});
    }
  }
  for (Model model : {kV32, kV4}) {
    for (IndexTransform transform : {IndexTransform::kHadamard, IndexTransform::kNone}) {
      model.transform = transform;
      for (Format in : {Format::kBf16, Format::kF32}) {
        for (Format out : kOuts) {
          add_key(list, {.spec = {.name = str_cat(name_of(model), "_", format_name(in), "_",
                                                  format_name(out))},
                         .tokens = 9,
                         .in = in,
                         .out = out,
                         .model = model,
                         .weights = in,
                         .page_size = 4});
        }
      }
    }
  }
  for (int64_t d : {2, 16, 256})
    add_key(list, {.spec = {.name = str_cat("width", d)}, .tokens = 4, .width = d, .rope_dim = 2});
  for (int64_t t : {1, 64, 2048}) {
    add_key(list, {.spec = {.name = str_cat("v32_t", t),
                            .op = "index_key_write",
                            .bench = true,
                            .phase = phase_of_case(true, t),
                            .columns = str_cat("M=", t, ";D=128")},
                   .tokens = t});
  }
}

// ---- recorded calls ----

/// Codes are of transformed rows.
Model model_of(const RecordedCall& call, Format out) {
  Model model = call.context().compressed ? kV4 : kV32;
  const bool codes = out == Format::kE4m3 || out == Format::kU8;
  model.transform = codes ? IndexTransform::kHadamard : IndexTransform::kNone;
  return model;
}

void add_query_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const int64_t tokens = call.dim("q", 0);
  add_query(one, {.spec = spec,
                  .tokens = tokens,
                  .heads = call.dim("q", 1),
                  .in = call.format("q"),
                  .out = call.format("q_out"),
                  .model = model_of(call, call.format("q_out")),
                  .width = call.dim("q", 2),
                  .rope_dim = call.dim("table", 1),
                  .weights = call.format("w"),
                  .positions = call.format("positions"),
                  .table_rows = call.dim("table", 0),
                  .of = tokens_of(call, spec, tokens)});
}

void add_key_call(CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
  const int64_t tokens = call.dim("k", 0);
  add_key(one, {.spec = spec,
                .tokens = tokens,
                .in = call.format("k"),
                .out = call.format("values"),
                .model = model_of(call, call.format("values")),
                .width = call.dim("k", 1),
                .rope_dim = call.dim("table", 1),
                .weights = call.format("norm_w"),
                .page_size = call.dim("values", 1),
                .pages = call.dim("values", 0),
                .gap = call.row_gap("k"),
                .table_rows = call.dim("table", 0),
                .of = tokens_of(call, spec, tokens)});
}

}  // namespace

void add_index_prepare_cases(CaseList& list) {
  add_query_cases(list);
  add_key_cases(list);
  list.serve_calls("index_query", add_query_call);
  list.serve_calls("index_key_write", add_key_call);
}

}  // namespace fathom
