#include <algorithm>
#include <cmath>

#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"

namespace fathom {
namespace oracle {
namespace {

double silu(double z) {
  return z / (1.0 + std::exp(-z));
}

double gelu(double z) {
  return z * 0.5 * std::erfc(-z / std::sqrt(2.0));
}

double gelu_tanh(double z) {
  const double pi = std::acos(-1.0);
  return z / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / pi) * (z + 0.044715 * z * z * z)));
}

}  // namespace
}  // namespace oracle

namespace {

struct GateShape {
  CaseSpec spec;
  int64_t t;
  int64_t i;
  Format format = Format::kBf16;
  int64_t row_gap = 0;
  float limit = 0;
};

template <class K>
void add_gate_case(CaseList& list, double (*activation)(double), const GateShape& s) {
  add_case<K>(list, s.spec, [s, activation](CaseBuilder<K>& c) {
    c.set_batch(s.t);
    // Scale 8 reaches gates far out on both sides, where e^-z over- and underflows; f16 leaves
    // fewer exponents for the product of two huge values.
    const double scale = s.format == Format::kF16 ? 2 : 8;
    // What is timed has values of a model: subnormal numbers take the processor longer.
    const Fill fill =
        s.spec.bench ? Fill{.scale = 2} : Fill{.dist = Dist::kMixedRows, .scale = scale};
    const Tensor x =
        c.input({s.t, 2 * s.i}, s.format, fill, {.row_gap = s.row_gap, .rows_per_batch = 1});
    const Tensor y = c.output({s.t, s.i}, s.format, {.row_gap = s.row_gap, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return typename K::Args{.x = at(x), .y = at(y), .limit = s.limit};
    });
    c.expect_rows(y, gates::row_op(s.format), [=](int64_t row, std::span<double> out) {
      const std::vector<double> both = x.row(row);
      const double limit = s.limit > 0 ? double{s.limit} : HUGE_VAL;
      for (size_t i = 0; i < out.size(); ++i) {
        const double up = both[i + out.size()];
        out[i] = activation(std::min(both[i], limit)) * std::clamp(up, -limit, limit);
      }
    });
  });
}

template <class K>
void add_small_cases(CaseList& list, double (*activation)(double)) {
  for (int64_t t : {0, 1, 2, 3, 7, 31}) {
    add_gate_case<K>(list, activation,
                     {.spec = {.name = str_cat("t", t, "_i67")}, .t = t, .i = 67, .row_gap = 4});
  }
  for (int64_t i : {1, 2, 15, 16, 17, 31, 32, 33, 1409}) {
    for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
      const bool plain = format == Format::kBf16;
      add_gate_case<K>(
          list, activation,
          {.spec = {.name = str_cat("t7_i", i, plain ? "" : str_cat("_", format_name(format)))},
           .t = 7,
           .i = i,
           .format = format,
           .row_gap = plain ? 0 : 2});
    }
  }
}

template <class K>
void add_bench_case(CaseList& list,
                    double (*activation)(double),
                    std::string_view name,
                    std::string_view op,
                    int64_t t,
                    int64_t i) {
  add_gate_case<K>(list, activation, {.spec = timed_spec(name, op, t), .t = t, .i = i});
}

}  // namespace

void add_gated_act_cases(CaseList& list) {
  add_small_cases<SiluMul>(list, oracle::silu);
  add_small_cases<GeluMul>(list, oracle::gelu);
  add_small_cases<GeluTanhMul>(list, oracle::gelu_tanh);
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t i : {1, 15, 16, 17, 1409}) {
      add_gate_case<SiluMul>(
          list, oracle::silu,
          {.spec = {.name = str_cat("t7_i", i, "_", format_name(format), "_limit10")},
           .t = 7,
           .i = i,
           .format = format,
           .row_gap = 2,
           .limit = 10});
    }
    // Rows that a GPU takes eight elements at a time.
    for (int64_t i : {8, 1408}) {
      add_gate_case<SiluMul>(
          list, oracle::silu,
          {.spec = {.name = str_cat("t7_i", i, "_", format_name(format), "_dense_limit10")},
           .t = 7,
           .i = i,
           .format = format,
           .limit = 10});
    }
  }
  // DeepSeek-V4: the six experts of 1, 8 and 128 tokens, and the shared one of 8,192.
  for (int64_t rows : {6, 48, 768, 8192}) {
    for (const auto& [name, i] : {std::pair("v4_flash", 2048), std::pair("v4_pro", 3072)}) {
      add_gate_case<SiluMul>(
          list, oracle::silu,
          {.spec = timed_spec(name, rows == 8192 ? "shared_experts" : "experts", rows),
           .t = rows,
           .i = i,
           .limit = 10});
    }
  }
  for (int64_t t : {1, 8, 64, 128, 512, 1024}) {
    add_bench_case<SiluMul>(list, oracle::silu, "r1_dense", "act_fn", t, 18432);
    add_bench_case<SiluMul>(list, oracle::silu, "r1_shared_expert", "shared_experts", t, 2048);
    add_bench_case<SiluMul>(list, oracle::silu, "v2_lite_dense", "act_fn", t, 10944);
    add_bench_case<SiluMul>(list, oracle::silu, "v2_lite_shared_experts", "shared_experts", t,
                            2816);
    add_bench_case<GeluMul>(list, oracle::gelu, "r1_dense", "act_fn", t, 18432);
    add_bench_case<GeluTanhMul>(list, oracle::gelu_tanh, "r1_dense", "act_fn", t, 18432);
  }
  for (const ReferencePoint& p : reference_points()) {
    const auto reference = [&](const char* op, int64_t rows) {
      add_reference_case(list, p, {.op = op}, [&](CaseList& one) {
        add_bench_case<SiluMul>(one, oracle::silu, "reference", op, rows, 2048);
      });
    };
    reference("act_fn", 8 * p.tokens());  // the rows of the experts of a token
    reference("shared_experts_act_fn", p.tokens());
  }
  // 128 tokens with 8 experts each
  add_bench_case<SiluMul>(list, oracle::silu, "r1_experts", "experts", 1024, 2048);
  // 2,400 x 36,864 in and half as much out: 265 MB, which no cache holds.
  add_bench_case<SiluMul>(list, oracle::silu, "r1_dense_chunk", "act_fn", 2400, 18432);
  add_bench_case<GeluMul>(list, oracle::gelu, "r1_dense_chunk", "act_fn", 2400, 18432);
  add_bench_case<GeluTanhMul>(list, oracle::gelu_tanh, "r1_dense_chunk", "act_fn", 2400, 18432);
  list.serve_calls("silu_mul", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_gate_case<SiluMul>(one, oracle::silu,
                           {.spec = spec,
                            .t = call.dim("y", 0),
                            .i = call.dim("y", 1),
                            .format = call.format("x"),
                            .row_gap = call.row_gap("x")});
  });
}

}  // namespace fathom
