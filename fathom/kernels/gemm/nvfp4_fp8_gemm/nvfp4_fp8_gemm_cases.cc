#include "fathom/kernels/gemm/nvfp4_fp8_gemm/e4m3_cases.h"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_fp8_gemm.h"

namespace fathom {
namespace {

using K = Nvfp4Fp8Gemm;

struct Shape {
  int64_t t = 0;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  XScales x_scales = XScales::kRowMajor;
  WeightLayout layout = WeightLayout::kRows16;  ///< on a GPU: pairs
  BlockScales scales = {};
  Dist dist = Dist::kNormal;
  int64_t gap = 9;  ///< elements after each row of x and y; 16: rows begin at multiples of 16 bytes
  const char* op = "";
};

void add(CaseList& list, const Shape& s) {
  add_case<K>(list, product_case_spec(s.op, s.t, s.n, s.k, e4m3_suffix(s)), [s](CaseBuilder<K>& c) {
    const bool bench = *s.op != '\0';
    const int64_t gap = bench ? 0 : s.gap;
    const bool cut = s.x_scales == XScales::kRowMajor;
    if (cut) c.set_batch(s.t);
    const E4m3X x(c, s.t, s.k, s.dist, s.x_scales, gap, cut);
    const CaseWeightSpec spec{
        .rows = s.n, .cols = s.k, .format = Format::kNvfp4, .layout = s.layout};
    const E4m3Weight w(c, spec, bench, s.scales);
    const Tensor y = c.output({s.t, s.n}, s.y, {.row_gap = gap, .rows_per_batch = cut ? 1 : 0});
    c.bind([=](const Binding& at) {
      return K::Args{
          .x = x.code_view(at), .w = at(w.stored), .y = at(y), .x_scales = x.scale_view(at)};
    });
    c.expect_each(y, gates::gemm(s.y),
                  [=](int64_t t, int64_t n) { return dot(x.row(t), w.row(n)); });
    const bool plain = s.dist == Dist::kNormal && s.scales.count == 0;
    if (bench || !plain || s.t * s.n < 4096) return;
    c.expect_full_precision(y, gates::full_precision(Format::kNvfp4),
                            [=](int64_t t, int64_t n) { return w.exact_product(x, t, n); });
  });
}

/// Rows of x enough that a GPU decodes all weights first, where rows are aligned.
void add_of_many_rows(CaseList& list) {
  for (WeightLayout layout : {WeightLayout::kRows16, WeightLayout::kRowMajor}) {
    add(list, {.t = 512, .n = 256, .k = 512, .layout = layout, .gap = 0});
    add(list, {.t = 257, .n = 150, .k = 384, .y = Format::kF16, .layout = layout, .gap = 16});
    for (const BlockScales& scales : kExtremeScales)
      add(list, {.t = 260, .n = 72, .k = 256, .layout = layout, .scales = scales, .gap = 16});
  }
  for (int64_t t : {256, 257, 383, 384, 385})
    add(list, {.t = t, .n = 130, .k = 256, .gap = 16});
  for (int64_t n : {1, 15, 127, 128, 129, 255, 257})
    add(list, {.t = 300, .n = n, .k = 256, .x_scales = XScales::kTmaAligned, .gap = 16});
  // Stages, slices of k, and weights that fill no block of threads that decode.
  for (int64_t k : {128, 640, 1152, 4224})
    add(list, {.t = 259, .n = 136, .k = k, .x_scales = XScales::kColumnMajor, .gap = 16});
  add(list, {.t = 258, .n = 3, .k = 128, .gap = 16});
  add(list, {.t = 270, .n = 261, .k = 384, .gap = 0});  // rows of y begin anywhere
  add(list, {.t = 270, .n = 130, .k = 640, .dist = Dist::kMixedRows, .gap = 16});
  add(list, {.t = 512, .n = 4500, .k = 128, .gap = 16});  // more tiles than multiprocessors
}

}  // namespace

void add_nvfp4_fp8_gemm_cases(CaseList& list) {
  for (WeightLayout layout : {WeightLayout::kRows16, WeightLayout::kRowMajor}) {
    for (int64_t t : {0, 1, 5, 17, 64, 130})
      add(list, {.t = t, .n = 48, .k = 256, .layout = layout});
    for (XScales form : {XScales::kColumnMajor, XScales::kTmaAligned})
      add(list, {.t = 7, .n = 150, .k = 384, .x_scales = form, .layout = layout});
    add(list, {.t = 3, .n = 33, .k = 256, .y = Format::kF32, .layout = layout});
    add(list, {.t = 9, .n = 40, .k = 384, .y = Format::kF16, .layout = layout});
    add(list, {.t = 14, .n = 40, .k = 640, .layout = layout, .dist = Dist::kMixedRows});
    for (const BlockScales& scales : kExtremeScales)
      add(list, {.t = 5, .n = 72, .k = 256, .layout = layout, .scales = scales});
  }
  // Edges of tiles of tokens, of rows of w, and of stages and slices of k.
  for (int64_t t : {1, 17, 63, 64, 65, 127, 128, 129, 130, 300})
    add(list, {.t = t, .n = 150, .k = 384, .y = t % 2 == 0 ? Format::kF16 : Format::kBf16});
  for (int64_t n : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257})
    add(list, {.t = 70, .n = n, .k = 256, .x_scales = XScales::kTmaAligned});
  for (int64_t k : {128, 256, 640, 1024, 1152, 1536, 4224})
    add(list, {.t = 33, .n = 136, .k = k});
  for (int64_t k : {128, 1536}) {
    add(list, {.t = 130, .n = 200, .k = k});
    add(list, {.t = 1, .n = 200, .k = k});
  }
  for (int64_t n : {261, 262}) {
    for (int64_t t : {17, 65, 130})
      add(list, {.t = t, .n = n, .k = 384, .gap = 0});
  }
  add(list, {.t = 33, .n = 261, .k = 2048, .gap = 0});
  add(list, {.t = 600, .n = 48, .k = 128});     // more rows than are decoded at once
  add(list, {.t = 1024, .n = 4500, .k = 128});  // more tiles than multiprocessors
  add(list, {.t = 66, .n = 130, .k = 640, .dist = Dist::kMixedRows});
  for (const BlockScales& scales : kExtremeScales)
    add(list, {.t = 66, .n = 136, .k = 640, .scales = scales});
  add_of_many_rows(list);
  for (int64_t t : {1, 16, 32, 64, 128, 512, 2048}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add(list, {.t = t, .n = n, .k = k, .op = op});
    };
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_o_proj", 7168, 16384);
    bench("r1_shared_gate_up_proj", 4096, 7168);
    bench("r1_shared_down_proj", 7168, 2048);
  }
}

}  // namespace fathom
