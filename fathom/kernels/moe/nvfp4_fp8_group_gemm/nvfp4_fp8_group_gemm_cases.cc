#include "fathom/kernels/gemm/nvfp4_fp8_gemm/e4m3_cases.h"
#include "fathom/kernels/moe/grouped_cases.h"
#include "fathom/kernels/moe/nvfp4_fp8_group_gemm/nvfp4_fp8_group_gemm.h"

namespace fathom {
namespace {

using K = Nvfp4Fp8GroupGemm;

struct Shape {
  ExpertLoad load;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  XScales x_scales = XScales::kRowMajor;
  WeightLayout layout = WeightLayout::kRows16;  ///< on a GPU: pairs
  BlockScales scales = {};
  Dist dist = Dist::kNormal;
  int64_t gap = 9;  ///< elements after each row of x and y
  int64_t top_k = 1;
  const char* op = "";
  OutputGate gate = {};

  int64_t width() const { return gate.on ? n / 2 : n; }  ///< of y
};

void add(CaseList& list, const Shape& s) {
  std::string suffix = e4m3_suffix(s);
  if (s.gate.on) str_append(suffix, str_cat("_gated_limit", s.gate.limit));
  CaseSpec spec = grouped_case_spec(s.op, s.load, s.n, s.k, s.top_k, suffix);
  if (spec.bench) spec.note = "experts mapped onto a ring";
  add_case<K>(list, spec, [s](CaseBuilder<K>& c) {
    const bool bench = *s.op != '\0';
    const int64_t gap = bench ? 0 : s.gap;
    const Tensor offsets = s.load.offsets(c);
    const E4m3X x(c, s.load.rows(), s.k, s.dist, s.x_scales, gap, false);
    const CaseWeightSpec w_spec{.num_experts = s.load.experts(),
                                .rows = s.n,
                                .cols = s.k,
                                .format = Format::kNvfp4,
                                .layout = s.layout};
    const E4m3Weight w(c, w_spec, bench, s.scales);
    const Tensor y = c.output({s.load.rows(), s.width()}, s.y, {.row_gap = gap});
    c.bind([=](const Binding& at) {
      return K::Args{.x = x.code_view(at),
                     .w = at(w.stored),
                     .offsets = at(offsets),
                     .y = at(y),
                     .top_k = s.top_k,
                     .gate = s.gate,
                     .x_scales = x.scale_view(at)};
    });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t r, int64_t n) {
      const int64_t e = s.load.expert_of(r);
      if (e < 0) return untouched();
      const double first = dot(x.row(r), w.row(e * s.n + n));
      if (!s.gate.on) return first;
      return swiglu_of(first, dot(x.row(r), w.row(e * s.n + s.width() + n)), s.gate.limit);
    });
    const bool plain = s.dist == Dist::kNormal && s.scales.count == 0;
    if (bench || !plain || s.load.rows() * s.width() < 4096) return;
    Gate gate = gates::full_precision(Format::kNvfp4);
    if (s.gate.on) gate.diff *= 3;  // of two that are so far off, with the largest clamped
    c.expect_full_precision(y, gate, [=](int64_t r, int64_t n) {
      const int64_t e = s.load.expert_of(r);
      if (e < 0) return untouched();
      const double first = w.exact_product(x, r, e * s.n + n);
      if (!s.gate.on) return first;
      return swiglu_of(first, w.exact_product(x, r, e * s.n + s.width() + n), s.gate.limit);
    });
  });
}

}  // namespace

void add_nvfp4_fp8_group_gemm_cases(CaseList& list) {
  for (const ExpertLoad& load : small_loads())
    add(list, {.load = load, .n = 128, .k = 256});
  const ExpertLoad few{.counts = {3, 0, 11, 2}};
  for (WeightLayout layout : {WeightLayout::kRows16, WeightLayout::kRowMajor}) {
    for (int64_t k : {128, 384, 1536})
      add(list, {.load = few, .n = 48, .k = k, .layout = layout});
    for (int64_t n : {1, 15, 17, 65, 130})
      add(list, {.load = few, .n = n, .k = 256, .layout = layout});
    for (Format y : {Format::kF32, Format::kF16})
      add(list, {.load = few, .n = 256, .k = 256, .y = y, .layout = layout});
    for (XScales form : {XScales::kColumnMajor, XScales::kTmaAligned})
      add(list, {.load = few, .n = 80, .k = 512, .x_scales = form, .layout = layout});
    add(list, {.load = few, .n = 64, .k = 256, .layout = layout, .dist = Dist::kMixedRows});
    for (const BlockScales& scales : kExtremeScales)
      add(list, {.load = few, .n = 48, .k = 256, .layout = layout, .scales = scales});
  }
  // Tiles of 64 and of 128 rows of x on a GPU: experts without rows first, between and last.
  const ExpertLoad some{.counts = {0, 65, 0, 0, 17, 64, 1, 0}, .before = 1, .after = 2};
  const ExpertLoad more{.counts = {0, 129, 200, 0}};
  for (int64_t k : {128, 640, 1152}) {
    add(list, {.load = some, .n = 136, .k = k});
    add(list, {.load = more, .n = 261, .k = k, .gap = 0});
  }
  // SwiGLU behind the product.
  for (const float limit : {0.0f, 1.0f}) {
    const OutputGate gate{.on = true, .limit = limit};
    add(list, {.load = few, .n = 2 * 24, .k = 256, .gate = gate});
    add(list, {.load = few, .n = 34, .k = 256, .layout = WeightLayout::kRowMajor, .gate = gate});
    add(list, {.load = some, .n = 2 * 136, .k = 640, .gate = gate});
    add(list, {.load = more, .n = 2 * 288, .k = 384, .gap = 8, .gate = gate});
  }
  // R1's experts: all of them, and sixteen as one device of several has them.
  for (int64_t tokens : {1, 32, 128, 1024}) {
    const auto bench = [&](const char* op, int64_t experts, int64_t n, int64_t k) {
      add(list, {.load = even_load(tokens, 8, experts), .n = n, .k = k, .top_k = 8, .op = op});
    };
    bench("r1_experts_gate_up", 256, 4096, 7168);
    bench("r1_experts_down", 256, 7168, 2048);
    bench("r1_16_experts_down", 16, 7168, 2048);
  }
}

}  // namespace fathom
