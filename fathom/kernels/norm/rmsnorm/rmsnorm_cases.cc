#include <cmath>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"

namespace fathom {
namespace {

struct NormShape {
  CaseSpec spec = {};
  int64_t t = 0;
  int64_t d = 0;
  Format x = Format::kBf16;
  Format w = Format::kBf16;
  Format y = Format::kBf16;
  int64_t row_gap = 0;
  int64_t y_gap = 0;  ///< of rmsnorm
};

/// What is timed has values of a model.
Fill fill_of(const NormShape& s, double scale = 1) {
  return {.dist = s.spec.bench ? Dist::kNormal : Dist::kMixedRows, .scale = scale};
}

/// s / sqrt(mean(s^2) + eps) * w, in double.
void normalise(const std::vector<double>& s, const Tensor& w, double eps, std::span<double> out) {
  double squares = 0;
  for (double v : s)
    squares += v * v;
  const double r = 1.0 / std::sqrt(squares / static_cast<double>(s.size()) + eps);
  for (size_t d = 0; d < s.size(); ++d)
    out[d] = s[d] * r * w[static_cast<int64_t>(d)];
}

void add_rmsnorm_case(CaseList& list, const NormShape& s) {
  add_case<RmsNorm>(list, s.spec, [s](CaseBuilder<RmsNorm>& c) {
    c.set_batch(s.t);
    const Tensor x =
        c.input({s.t, s.d}, s.x, fill_of(s), {.row_gap = s.row_gap, .rows_per_batch = 1});
    const Tensor w = c.input({s.d}, s.w);
    const Tensor y = c.output({s.t, s.d}, s.y, {.row_gap = s.y_gap, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return RmsNorm::Args{.x = at(x), .w = at(w), .y = at(y), .eps = 1e-6f};
    });
    c.expect_rows(y, gates::row_op(s.y), [=](int64_t row, std::span<double> out) {
      normalise(x.row(row), w, double{1e-6f}, out);
    });
  });
}

void add_add_rmsnorm_case(CaseList& list, const NormShape& s) {
  add_case<AddRmsNorm>(list, s.spec, [s](CaseBuilder<AddRmsNorm>& c) {
    c.set_batch(s.t);
    const RowPlacement placed = {.row_gap = s.row_gap, .rows_per_batch = 1};
    const Tensor x = c.input({s.t, s.d}, s.x, fill_of(s), placed);
    const Tensor h = c.inout({s.t, s.d}, s.x, fill_of(s, 3), placed);
    const Tensor w = c.input({s.d}, s.w);
    const Tensor y = c.output({s.t, s.d}, s.x, placed);
    c.bind([=](const Binding& at) {
      return AddRmsNorm::Args{.x = at(x), .h = at(h), .w = at(w), .y = at(y), .eps = 1e-6f};
    });
    const auto sum = [=](int64_t row) {
      std::vector<double> s_row = h.row(row);
      const std::vector<double> x_row = x.row(row);
      for (size_t d = 0; d < s_row.size(); ++d)
        s_row[d] += x_row[d];
      return s_row;
    };
    c.expect_rows(y, gates::row_op(s.x), [=](int64_t row, std::span<double> out) {
      normalise(sum(row), w, double{1e-6f}, out);
    });
    c.expect_rows(h, gates::row_op(s.x), [=](int64_t row, std::span<double> out) {
      const std::vector<double> exact = sum(row);
      std::copy(exact.begin(), exact.end(), out.begin());
    });
  });
}

/// Small shapes of both kernels, which share everything but the names.
std::vector<NormShape> small_shapes() {
  constexpr Format kBf16 = Format::kBf16;
  constexpr Format kF16 = Format::kF16;
  constexpr Format kF32 = Format::kF32;
  std::vector<NormShape> shapes;
  for (int64_t t : {0, 1, 2, 3, 7, 29}) {
    shapes.push_back(
        {.spec = {.name = str_cat("t", t, "_d129")}, .t = t, .d = 129, .row_gap = 6, .y_gap = 3});
  }
  for (int64_t d : {1, 2, 15, 16, 17, 63, 64, 65, 127, 512, 1531}) {
    shapes.push_back({.spec = {.name = str_cat("t7_d", d)}, .t = 7, .d = d});
    shapes.push_back({.spec = {.name = str_cat("t7_d", d, "_f32")},
                      .t = 7,
                      .d = d,
                      .x = kF32,
                      .w = kF32,
                      .y = kF32,
                      .row_gap = 2,
                      .y_gap = 1});
    shapes.push_back({.spec = {.name = str_cat("t7_d", d, "_f16")},
                      .t = 7,
                      .d = d,
                      .x = kF16,
                      .w = kF16,
                      .y = kF16,
                      .row_gap = 4,
                      .y_gap = 2});
  }
  shapes.push_back({.spec = {.name = "t128_d7168"}, .t = 128, .d = 7168, .w = kF32});
  shapes.push_back({.spec = {.name = "t9_d333_w_f32"}, .t = 9, .d = 333, .w = kF32});
  shapes.push_back(
      {.spec = {.name = "t9_d333_f32_w_bf16"}, .t = 9, .d = 333, .x = kF32, .w = kBf16, .y = kF32});
  return shapes;
}

/// The norms of R1 and V2-Lite. q_a and kv_a read slices of the fused down projection.
std::vector<NormShape> bench_shapes(bool slices) {
  std::vector<NormShape> shapes;
  const auto add = [&](std::string_view name, std::string_view op, NormShape s) {
    s.spec = timed_spec(name, op, s.t);
    shapes.push_back(s);
  };
  for (int64_t t : {1, 8, 64, 128, 512, 1024}) {
    add("r1", "input_layernorm", {.t = t, .d = 7168});
    add("v2_lite", "input_layernorm", {.t = t, .d = 2048});
    if (!slices) continue;
    add("r1_q_a", "q_a_layernorm", {.t = t, .d = 1536, .row_gap = 576, .y_gap = 288});
    add("r1_kv_a", "kv_a_layernorm", {.t = t, .d = 512, .row_gap = 1600, .y_gap = 800});
  }
  // 9,400 x 7,168 in and out, twice for the add: 270 MB or 540 MB, which no cache holds.
  add("r1_chunk", "input_layernorm", {.t = 9400, .d = 7168});
  return shapes;
}

void add_reference_points(CaseList& list) {
  for (const ReferencePoint& p : reference_points()) {
    const auto add = [&](const char* op, int64_t d, int64_t row_gap) {
      add_reference_case(list, p, {.op = op}, [&](CaseList& one) {
        add_rmsnorm_case(one, {.spec = timed_spec(op, op, p.tokens()),
                               .t = p.tokens(),
                               .d = d,
                               .row_gap = row_gap,
                               .y_gap = row_gap / 2});
      });
    };
    add("input_layernorm", 7168, 0);
    add("q_a_layernorm", 1536, 576);
    add("kv_a_layernorm", 512, 1600);
  }
  for (const ReferencePoint& p : reference_points()) {
    for (const char* op : {"input_layernorm", "post_attention_layernorm"}) {
      add_reference_case(list, p, {.op = op}, [&](CaseList& one) {
        add_add_rmsnorm_case(one,
                             {.spec = timed_spec(op, op, p.tokens()), .t = p.tokens(), .d = 7168});
      });
    }
  }
}

NormShape shape_of(const RecordedCall& call, const CaseSpec& spec) {
  return {.spec = spec,
          .t = call.dim("x", 0),
          .d = call.dim("x", 1),
          .x = call.format("x"),
          .w = call.format("w"),
          .y = call.format("y"),
          .row_gap = call.row_gap("x"),
          .y_gap = call.row_gap("y")};
}

}  // namespace

void add_rmsnorm_cases(CaseList& list) {
  for (const NormShape& s : small_shapes()) {
    add_rmsnorm_case(list, s);
    add_add_rmsnorm_case(list, s);
  }
  add_rmsnorm_case(list,
                   {.spec = {.name = "t5_d100_bf16_to_f32"}, .t = 5, .d = 100, .y = Format::kF32});
  add_rmsnorm_case(list,
                   {.spec = {.name = "t5_d100_f32_to_bf16"}, .t = 5, .d = 100, .x = Format::kF32});
  for (const NormShape& s : bench_shapes(true))
    add_rmsnorm_case(list, s);
  for (const NormShape& s : bench_shapes(false))
    add_add_rmsnorm_case(list, s);
  add_reference_points(list);
  list.serve_calls("rmsnorm", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_rmsnorm_case(one, shape_of(call, spec));
  });
  list.serve_calls("add_rmsnorm",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     add_add_rmsnorm_case(one, shape_of(call, spec));
                   });
}

}  // namespace fathom
