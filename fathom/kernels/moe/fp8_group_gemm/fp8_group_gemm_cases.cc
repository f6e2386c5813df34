#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/moe/grouped_cases.h"

namespace fathom {
namespace {

struct Shape {
  ExpertLoad load;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  WeightLayout layout = WeightLayout::kRowMajor;
  Format weight = Format::kFp8Block;
  bool column_major_scales = false;
  Dist dist = Dist::kNormal;
  int64_t top_k = 1;
  int64_t x_gap = 9;  ///< codes after each row; multiples of 16 leave rows that wide loads can take
  const char* op = "";
  int64_t ring_bytes = 0;
};

std::string suffix(const Shape& s) {
  std::string out = str_cat("quantised_", format_name(s.y));
  if (s.weight != Format::kFp8Block) str_append(out, str_cat("_", format_name(s.weight)));
  if (s.layout == WeightLayout::kRows16) out += "_rows16";
  if (s.column_major_scales) out += "_column_scales";
  if (s.dist != Dist::kNormal) out += "_mixed";
  if (s.x_gap % 16 == 0) out += "_aligned";
  return out;
}

/// Activations as the reference passes them: E4M3 codes and float32 scales [R, K/128].
struct QuantisedRows {
  Tensor codes, scales;
  std::shared_ptr<std::vector<float>> exact;
  int64_t rows = 0, blocks = 0, row_stride = 0, block_stride = 0;

  QuantisedRows(CaseData& c, const Shape& s)
      : rows(s.load.rows()), blocks(ceil_div(s.k, kFp8Block)) {
    row_stride = s.column_major_scales ? 1 : blocks;
    block_stride = s.column_major_scales ? rows : 1;
    codes = c.input({rows, s.k}, Format::kE4m3, {}, {.row_gap = *s.op == '\0' ? s.x_gap : 0});
    scales = c.input({rows * blocks}, Format::kF32);
    exact = random_values(c, rows, s.k, {.dist = s.dist});
    std::vector<E4m3> quantised(exact->size());
    std::vector<float> linear(static_cast<size_t>(rows * blocks));
    fp8_quantize_groups(exact->data(), rows, s.k, kFp8Block, kFp8SglangGroup, quantised.data(),
                        linear.data());
    put_codes(codes, quantised);
    for (int64_t i = 0; i < rows * blocks; ++i) {
      scales.set(i / blocks * row_stride + i % blocks * block_stride,
                 double{linear[static_cast<size_t>(i)]});
    }
  }

  View scale_view(const Binding& at) const {
    View v = make_view(at(scales).data, {rows, blocks}, Format::kF32);
    v.strides[0] = row_stride;
    v.strides[1] = block_stride;
    return v;
  }

  std::vector<double> row(int64_t r) const {
    std::vector<double> out = codes.row(r);
    for (size_t k = 0; k < out.size(); ++k)
      out[k] *= scales[r * row_stride + static_cast<int64_t>(k) / kFp8Block * block_stride];
    return out;
  }
};

template <class K>
void add_quantised(CaseList& list, const Shape& s) {
  CaseSpec spec = grouped_case_spec(s.op, s.load, s.n, s.k, s.top_k, suffix(s));
  if (s.ring_bytes > 0) spec.note = "experts mapped onto a ring";
  add_case<K>(list, spec, [s](CaseBuilder<K>& c) {
    const bool bench = *s.op != '\0';
    const Tensor offsets = s.load.offsets(c);
    const QuantisedRows x(c, s);
    const CaseWeightSpec w_spec{.num_experts = s.load.experts(),
                                .rows = s.n,
                                .cols = s.k,
                                .format = s.weight,
                                .layout = s.layout};
    const Weight w = bench ? c.weight_codes(w_spec, s.ring_bytes) : c.weight(w_spec);
    const Tensor y = c.output({s.load.rows(), s.n}, s.y, {.row_gap = bench ? 0 : 3});
    c.bind([=](const Binding& at) {
      return Fp8GroupGemm::Args{.x = as_format(at(x.codes), Format::kFp8Group, s.k),
                                .w = at(w),
                                .offsets = at(offsets),
                                .y = at(y),
                                .top_k = s.top_k,
                                .x_scales = x.scale_view(at)};
    });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t r, int64_t n) {
      const int64_t e = s.load.expert_of(r);
      return e < 0 ? untouched() : dot(x.row(r), w.row(e * s.n + n));
    });
    if (bench || s.dist != Dist::kNormal || s.load.rows() * s.n < 4096) return;
    c.expect_full_precision(y, gates::full_precision(s.weight), [=](int64_t r, int64_t n) {
      const int64_t e = s.load.expert_of(r);
      if (e < 0) return untouched();
      const std::span<const float> row = w.exact_row(e * s.n + n);
      return dot_rows(*x.exact, r, {row.begin(), row.end()}, 0, s.k);
    });
  });
}

template <class K>
void add_small_quantised_cases(CaseList& list) {
  for (WeightLayout layout : {WeightLayout::kRowMajor, WeightLayout::kRows16}) {
    for (const ExpertLoad& load : small_loads())
      add_quantised<K>(list, {.load = load, .n = 128, .k = 256, .layout = layout});
    const ExpertLoad load{.counts = {3, 0, 11, 2}};
    for (int64_t k : {1, 2, 3, 127, 128, 129, 300})
      add_quantised<K>(list, {.load = load, .n = 48, .k = k, .layout = layout});
    for (Format y : {Format::kF32, Format::kF16})
      add_quantised<K>(list, {.load = load, .n = 256, .k = 384, .y = y, .layout = layout});
    add_quantised<K>(
        list,
        {.load = load, .n = 64, .k = 256, .layout = layout, .weight = Format::kFp8BlockUe8m0});
    add_quantised<K>(
        list, {.load = load, .n = 64, .k = 256, .layout = layout, .column_major_scales = true});
    add_quantised<K>(list,
                     {.load = load, .n = 64, .k = 320, .layout = layout, .dist = Dist::kMixedRows});
  }
  add_quantised<K>(list, {.load = {.counts = {2, 5}}, .n = 150, .k = 200});
  for (const ExpertLoad& load : small_loads())
    add_quantised<K>(list, {.load = load, .n = 144, .k = 272, .x_gap = 16});
  // Tiles of 128 rows, and whole sixteen bytes of y: three elements lie between its rows.
  const ExpertLoad many{.counts = {150, 0, 70, 129, 1}};
  for (Format weight : {Format::kFp8Block, Format::kFp8BlockUe8m0}) {
    add_quantised<K>(list, {.load = many, .n = 253, .k = 528, .weight = weight, .x_gap = 16});
    add_quantised<K>(list, {.load = many,
                            .n = 389,
                            .k = 272,
                            .weight = weight,
                            .column_major_scales = true,
                            .x_gap = 16});
  }
}

/// R1's experts as a model has them and as the reference call does. A stack of row-major weights
/// that memory does not hold has fewer experts.
template <class K>
void add_real_quantised_cases(CaseList& list, ExpertLoad (*load_of)(int64_t, int64_t, int64_t)) {
  constexpr int64_t kRing = 1 << 30;
  for (int64_t tokens : {1, 8, 512}) {
    const auto add = [&](const char* op, int64_t experts, int64_t n, int64_t k, WeightLayout layout,
                         int64_t ring) {
      add_quantised<K>(list, {.load = load_of(tokens, 8, experts),
                              .n = n,
                              .k = k,
                              .layout = layout,
                              .top_k = 8,
                              .op = op,
                              .ring_bytes = ring});
    };
    add("r1_experts_gate_up", 256, 4096, 7168, WeightLayout::kRows16, kRing);
    add("r1_experts_down", 256, 7168, 2048, WeightLayout::kRows16, kRing);
    add("r1_16_experts_down", 16, 7168, 2048, WeightLayout::kRowMajor, 0);
  }
}

/// x in bf16 and K of multiples of 512, which are split over the warps of a block on a GPU: experts
/// without rows, with one batch of eight and with two, tiles enough that each block has several,
/// K as short and as long as it may be, scales of both formats, rows of w that end within 128.
template <class K>
void add_split_k_cases(CaseList& list) {
  const auto add = [&](GroupedShape s) {
    if (s.weight == Format::kBf16) s.weight = Format::kFp8Block;
    s.x_gap = 8;
    add_grouped_case<K>(list, s);
  };
  const std::vector<int64_t> some{0, 1, 3, 0, 0, 11, 8, 0};
  add({.counts = some, .n = 272, .k = 1536, .before = 1, .after = 2, .y_gap = 0});
  add({.counts = some, .n = 1008, .k = 2048, .y = Format::kF32});
  add({.counts = some, .n = 176, .k = 7168, .y = Format::kF16, .before = 2});
  add({.counts = some, .n = 48, .k = 2560, .weight = Format::kFp8BlockUe8m0});
  add({.counts = {1, 9, 2}, .n = 48, .k = 7680});
  add({.counts = {0, 0, 0, 0}, .n = 16, .k = 1536});
  std::vector<int64_t> many(200);
  for (size_t e = 0; e < many.size(); ++e)
    many[e] = static_cast<int64_t>(e % 7 == 3 ? 9 : e % 3);
  add({.counts = many, .n = 160, .k = 1536});
}

}  // namespace

void add_fp8_group_gemm_cases(CaseList& list) {
  add_small_grouped_cases<Fp8GroupGemm>(list, Format::kFp8Block);
  add_expert_cases<Fp8GroupGemm>(list, Format::kFp8Block);
  add_small_quantised_cases<Fp8GroupGemm>(list);
  add_real_quantised_cases<Fp8GroupGemm>(list, even_load);
  add_small_grouped_cases<Fp8GroupGemmSkewed>(list, Format::kFp8Block);
  add_small_quantised_cases<Fp8GroupGemmSkewed>(list);
  add_real_quantised_cases<Fp8GroupGemmSkewed>(list, skewed_load);
  add_split_k_cases<Fp8GroupGemm>(list);
  add_gated_cases<Fp8GroupGemm>(list, Format::kFp8Block);
  add_grouped_case<Fp8GroupGemm>(list, {.counts = {2, 9, 0, 30},
                                        .n = 2 * 72,
                                        .k = 1536,
                                        .weight = Format::kFp8BlockUe8m0,
                                        .x_gap = 8,
                                        .gated = true});
  add_gated_experts<Fp8GroupGemm>(list, Format::kFp8Block, "v32_experts_gate_up_act",
                                  {.counts = {}, .n = 4096, .k = 7168, .top_k = 8});
  list.serve_calls("fp8_group_gemm", add_grouped_call<Fp8GroupGemm>);
}

}  // namespace fathom
