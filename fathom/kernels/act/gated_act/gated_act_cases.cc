#include <cmath>

#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {
namespace {

struct GateShape {
  CaseSpec spec;
  int64_t t;
  int64_t i;
  Format format = Format::kBf16;
  int64_t row_gap = 0;
};

void add_silu_mul_case(CaseList& list, const GateShape& s) {
  add_case<SiluMul>(list, s.spec, [s](CaseBuilder<SiluMul>& c) {
    c.set_batch(s.t);
    // Scale 8 reaches gates far out on both sides, where e^-z over- and underflows.
    const Tensor x = c.input({s.t, 2 * s.i}, s.format, {.dist = Dist::kMixedRows, .scale = 8},
                             {.row_gap = s.row_gap, .rows_per_batch = 1});
    const Tensor y = c.output({s.t, s.i}, s.format, {.row_gap = s.row_gap, .rows_per_batch = 1});
    c.bind([=](const Binding& at) { return SiluMul::Args{.x = at(x), .y = at(y)}; });
    c.expect_rows(y, gates::row_op(s.format), [=](int64_t row, std::span<double> out) {
      const std::vector<double> both = x.row(row);
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = both[i] / (1.0 + std::exp(-both[i])) * both[i + out.size()];
      }
    });
  });
}

}  // namespace

void add_gated_act_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 7, 31}) {
    add_silu_mul_case(list,
                      {.spec = {.name = str_cat("t", t, "_i67")}, .t = t, .i = 67, .row_gap = 4});
  }
  for (int64_t i : {1, 2, 15, 16, 17, 31, 32, 33, 1409}) {
    add_silu_mul_case(list, {.spec = {.name = str_cat("t7_i", i)}, .t = 7, .i = i});
    add_silu_mul_case(list, {.spec = {.name = str_cat("t7_i", i, "_f32")},
                             .t = 7,
                             .i = i,
                             .format = Format::kF32,
                             .row_gap = 2});
  }
  const auto add_bench = [&](std::string_view name, std::string op, int64_t t, int64_t i) {
    add_silu_mul_case(list, {.spec = {.name = str_cat(name, "_t", t),
                                      .op = std::move(op),
                                      .bench = true,
                                      .phase = t > 128 ? "prefill" : "decode"},
                             .t = t,
                             .i = i});
  };
  for (int64_t t : {1, 8, 64, 128, 512, 1024}) {
    add_bench("r1_dense", "act_fn", t, 18432);
    add_bench("r1_shared_expert", "shared_experts", t, 2048);
    add_bench("v2_lite_dense", "act_fn", t, 10944);
    add_bench("v2_lite_shared_experts", "shared_experts", t, 2816);
  }
  add_bench("r1_experts", "experts", 1024, 2048);  // 128 tokens with 8 experts each
}

}  // namespace fathom
