#include <map>
#include <memory>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/moe/grouped_cases.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {
namespace {

/// The weights of a quantised product: as a model has them, as a checkpoint has them, or as the
/// reference call passes them, with swizzled scales and without a global scale.
enum class WeightForm { kRows16, kRowMajor, kReference };

struct Shape {
  ExpertLoad load;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  WeightForm weight = WeightForm::kReference;
  bool swizzled_x = true;
  bool alphas = true;
  Dist dist = Dist::kNormal;
  int64_t top_k = 1;
  const char* op = "";
};

std::string suffix(const Shape& s) {
  std::string out = str_cat("quantised_", format_name(s.y));
  if (s.weight == WeightForm::kRows16) out += "_rows16";
  if (s.weight == WeightForm::kRowMajor) out += "_row_major";
  if (!s.swizzled_x) out += "_linear";
  if (!s.alphas) out += "_no_alphas";
  if (s.dist != Dist::kNormal) out += "_mixed";
  return out;
}

uint8_t byte_at(const Tensor& t, int64_t place) {
  return static_cast<uint8_t>(t[place]);
}

double code_of(uint8_t byte, int64_t k) {
  return double{to_float(unpack_e2m1(&byte, k % 2))};
}

double scale_of(uint8_t byte) {
  return double{to_float(E4m3{byte})};
}

/// Packed activations. Swizzled scales of each expert begin with a tile; padding is NaN.
struct PackedRows {
  Tensor codes, scales, scale_offsets;
  std::shared_ptr<std::vector<float>> exact;
  float input_scale = 1.0f;
  Shape shape;
  std::vector<int32_t> begins;  // first scale row of each expert

  PackedRows(CaseData& c, const Shape& s) : shape(s) {
    const int64_t rows = s.load.rows();
    exact = random_values(c, rows, s.k, {.dist = s.dist});
    float amax = 0;
    for (float v : *exact)
      amax = std::max(amax, std::fabs(v));
    input_scale = nvfp4_global_scale(amax);
    std::vector<uint8_t> packed(static_cast<size_t>(rows * s.k / 2));
    std::vector<E4m3> linear(static_cast<size_t>(rows * s.k / 16));
    nvfp4_quantize_activations(exact->data(), rows, s.k, 1.0f / input_scale, packed.data(),
                               linear.data());
    codes = c.input({rows, s.k / 2}, Format::kU8, {}, {.row_gap = *s.op != '\0' ? 0 : 5});
    put_codes(codes, packed);
    const std::vector<int32_t> counts(s.load.counts.begin(), s.load.counts.end());
    begins.resize(counts.size() + 1);
    blockscale_offsets(counts, begins);
    scale_offsets = c.input({static_cast<int64_t>(begins.size())}, Format::kI32);
    scale_offsets.fill([&](int64_t e) { return begins[static_cast<size_t>(e)]; });
    scales = s.swizzled_x ? c.input({begins.back(), align_up<int64_t>(s.k / 16, 4)}, Format::kU8)
                          : c.input({rows, s.k / 16}, Format::kU8, {}, {.row_gap = 3});
    scales.fill([](int64_t) { return 0x7F; });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t b = 0; b < s.k / 16 && place(r, b) >= 0; ++b) {
        scales.set(place(r, b), linear[static_cast<size_t>(r * (s.k / 16) + b)].bits);
      }
    }
  }

  /// Of the scale of row r and block b; -1 for a row of no expert, which has no swizzled scale.
  int64_t place(int64_t r, int64_t b) const {
    if (!shape.swizzled_x) return r * (shape.k / 16) + b;
    const int64_t e = shape.load.expert_of(r);
    if (e < 0) return -1;
    int64_t first = shape.load.before;
    for (int64_t i = 0; i < e; ++i)
      first += shape.load.counts[static_cast<size_t>(i)];
    return swizzled_128x4_offset(begins[static_cast<size_t>(e)] + r - first, b, shape.k / 16);
  }

  /// Row r as numbers, kept: an oracle asks for few rows, and for each of them many times.
  const std::vector<double>& row(int64_t r) const {
    std::vector<double>& out = (*decoded)[r];
    if (!out.empty()) return out;
    out.resize(static_cast<size_t>(shape.k));
    for (int64_t k = 0; k < shape.k; ++k) {
      out[static_cast<size_t>(k)] = code_of(byte_at(codes, r * (shape.k / 2) + k / 2), k) *
                                    scale_of(byte_at(scales, place(r, k / 16)));
    }
    return out;
  }

  std::shared_ptr<std::map<int64_t, std::vector<double>>> decoded =
      std::make_shared<std::map<int64_t, std::vector<double>>>();
};

/// Row-major weights with swizzled scales and no global scale: what the reference passes. The
/// global scale of each expert is part of its alpha.
struct ReferenceWeight {
  Tensor codes, scales;
  std::shared_ptr<std::vector<float>> exact;  // [E * n, k]
  std::vector<float> global;                  // of each expert
  Shape shape;

  ReferenceWeight(CaseData& c, const Shape& s) : shape(s) {
    const int64_t experts = s.load.experts();
    const int64_t blocks = s.k / 16;
    exact = random_values(c, experts * s.n, s.k, {.scale = 1.0 / std::sqrt(double(s.k))});
    codes = c.input({experts, s.n, s.k / 2}, Format::kU8);
    scales =
        c.input({experts, align_up<int64_t>(s.n, 128), align_up<int64_t>(blocks, 4)}, Format::kU8);
    scales.fill([](int64_t) { return 0x7F; });
    std::vector<uint8_t> packed(static_cast<size_t>(s.n * s.k / 2));
    std::vector<E4m3> linear(static_cast<size_t>(s.n * blocks));
    for (int64_t e = 0; e < experts; ++e) {
      const float* values = exact->data() + e * s.n * s.k;
      float amax = 0;
      for (int64_t i = 0; i < s.n * s.k; ++i)
        amax = std::max(amax, std::fabs(values[i]));
      global.push_back(nvfp4_global_scale(amax));
      const Status status =
          nvfp4_quantize_weights(values, s.n, s.k, global.back(), packed.data(), linear.data());
      FATHOM_CHECK(status.ok(), status.message());
      for (size_t i = 0; i < packed.size(); ++i)
        codes.set(e * s.n * s.k / 2 + static_cast<int64_t>(i), packed[i]);
      for (int64_t i = 0; i < s.n * blocks; ++i) {
        scales.set(place(e, i / blocks, i % blocks), linear[static_cast<size_t>(i)].bits);
      }
    }
  }

  int64_t place(int64_t e, int64_t n, int64_t b) const {
    return e * swizzled_128x4_bytes(shape.n, shape.k / 16) +
           swizzled_128x4_offset(n, b, shape.k / 16);
  }

  /// Without its global scale.
  double at(int64_t e, int64_t n, int64_t k) const {
    return code_of(byte_at(codes, ((e * shape.n + n) * shape.k + k) / 2), k) *
           scale_of(byte_at(scales, place(e, n, k / 16)));
  }

  QuantView view(const Binding& at) const {
    QuantView w;
    w.values = as_format(at(codes), Format::kNvfp4, shape.k);
    w.scales = at(scales);
    w.scales.format = Format::kE4m3;
    return w;
  }
};

Tensor alphas_of(CaseData& c, const Shape& s, const std::function<double(int64_t e)>& f) {
  if (!s.alphas) return {};
  const Tensor alphas = c.input({s.load.experts()}, Format::kF32);
  for (int64_t e = 0; e < s.load.experts(); ++e)
    alphas.set(e, f(e));
  return alphas;
}

Nvfp4GroupGemm::Args args_of(const Shape& s, const PackedRows& x, const Binding& at) {
  Nvfp4GroupGemm::Args a{.x = as_format(at(x.codes), Format::kNvfp4, s.k),
                         .w = {},
                         .offsets = {},
                         .y = {},
                         .top_k = s.top_k,
                         .x_scales = at(x.scales)};
  a.x_scales.format = Format::kE4m3;
  if (!s.swizzled_x) return a;
  a.x_scale_layout = BlockScaleLayout::kSwizzled128x4;
  a.scale_offsets = at(x.scale_offsets);
  return a;
}

void build_reference(CaseBuilder<Nvfp4GroupGemm>& c, const Shape& s) {
  const Tensor offsets = s.load.offsets(c);
  const PackedRows x(c, s);
  const auto w = std::make_shared<ReferenceWeight>(c, s);
  const Tensor alphas = alphas_of(
      c, s, [&](int64_t e) { return double{x.input_scale * w->global[static_cast<size_t>(e)]}; });
  const Tensor y = c.output({s.load.rows(), s.n}, s.y, {.row_gap = 3});
  c.bind([=](const Binding& at) {
    Nvfp4GroupGemm::Args a = args_of(s, x, at);
    a.w = w->view(at);
    a.w_scale_layout = BlockScaleLayout::kSwizzled128x4;
    a.offsets = at(offsets);
    a.y = at(y);
    a.alphas = at(alphas);
    return a;
  });
  c.expect_each(y, gates::gemm(s.y), [=](int64_t r, int64_t n) {
    const int64_t e = s.load.expert_of(r);
    if (e < 0) return untouched();
    const std::vector<double>& row = x.row(r);
    double sum = 0;
    for (int64_t k = 0; k < s.k; ++k)
      sum += row[static_cast<size_t>(k)] * w->at(e, n, k);
    return sum * alphas[e];
  });
  if (s.dist != Dist::kNormal || s.load.rows() * s.n < 4096) return;
  // Activations and weights are rounded to four bits each.
  Gate gate = gates::full_precision(Format::kNvfp4);
  gate.diff *= 2;
  c.expect_full_precision(y, gate, [=](int64_t r, int64_t n) {
    const int64_t e = s.load.expert_of(r);
    return e < 0 ? untouched() : dot_rows(*x.exact, r, *w->exact, e * s.n + n, s.k);
  });
}

void build_own_layouts(CaseBuilder<Nvfp4GroupGemm>& c, const Shape& s) {
  const bool bench = *s.op != '\0';
  const Tensor offsets = s.load.offsets(c);
  const PackedRows x(c, s);
  const CaseWeightSpec w_spec{
      .num_experts = s.load.experts(),
      .rows = s.n,
      .cols = s.k,
      .format = Format::kNvfp4,
      .layout = s.weight == WeightForm::kRows16 ? WeightLayout::kRows16 : WeightLayout::kRowMajor};
  const Weight w = bench ? c.weight_codes(w_spec, 1 << 30) : c.weight(w_spec);
  const Tensor alphas = alphas_of(c, s, [&](int64_t e) { return 0.5 + double(e % 5); });
  const Tensor y = c.output({s.load.rows(), s.n}, s.y, {.row_gap = bench ? 0 : 3});
  c.bind([=](const Binding& at) {
    Nvfp4GroupGemm::Args a = args_of(s, x, at);
    a.w = at(w);
    a.offsets = at(offsets);
    a.y = at(y);
    a.alphas = at(alphas);
    return a;
  });
  c.expect_each(y, gates::gemm(s.y), [=](int64_t r, int64_t n) {
    const int64_t e = s.load.expert_of(r);
    if (e < 0) return untouched();
    return dot(x.row(r), w.row(e * s.n + n)) * (s.alphas ? alphas[e] : 1.0);
  });
}

void add_quantised(CaseList& list, const Shape& s) {
  CaseSpec spec = grouped_case_spec(s.op, s.load, s.n, s.k, s.top_k, suffix(s));
  if (spec.bench) spec.note = "experts mapped onto a ring";
  add_case<Nvfp4GroupGemm>(list, spec, [s](CaseBuilder<Nvfp4GroupGemm>& c) {
    if (s.weight == WeightForm::kReference) {
      build_reference(c, s);
    } else {
      build_own_layouts(c, s);
    }
  });
}

/// Weights as the loader makes them, rows of x apart.
void add_paired(CaseList& list, GroupedShape s) {
  s.weight = Format::kNvfp4;
  s.x_gap = 8;
  add_grouped_case<Nvfp4GroupGemm>(list, s);
}

/// Tiles of 256 rows of w on a GPU, of 64, 128 and 256 rows of x: experts without rows first,
/// between and last; less than the 256 k of a stage of weights, whole ones, and more.
void add_tile_cases(CaseList& list) {
  const auto add = [&](const GroupedShape& s) { add_paired(list, s); };
  const std::vector<int64_t> some{0, 65, 0, 0, 17, 64, 1, 0};
  const std::vector<int64_t> more{0, 129, 200, 0};
  const std::vector<int64_t> many{0, 257, 0, 520};
  add({.counts = some, .n = 264, .k = 64, .before = 1, .after = 2});
  add({.counts = some, .n = 1000, .k = 128});
  add({.counts = some, .n = 264, .k = 512});
  add({.counts = some, .n = 261, .k = 320, .y_gap = 0});
  add({.counts = some, .n = 262, .k = 320, .y = Format::kF16, .y_gap = 0});
  add({.counts = more, .n = 264, .k = 64});
  add({.counts = more, .n = 264, .k = 1088, .before = 1, .after = 2});
  add({.counts = more, .n = 261, .k = 192, .y_gap = 0});
  add({.counts = many, .n = 264, .k = 64});
  add({.counts = many, .n = 264, .k = 320});
  add({.counts = many, .n = 261, .k = 192, .y_gap = 0});
}

/// Few rows in all: experts without any first, between and last, one with more than the others,
/// and more experts than a block of threads looks at at once.
void add_few_row_cases(CaseList& list) {
  const auto add = [&](const GroupedShape& s) { add_paired(list, s); };
  const std::vector<int64_t> some{0, 1, 1, 0, 0, 11, 1, 0};
  add({.counts = some, .n = 261, .k = 256, .before = 1, .after = 2, .y_gap = 0});
  add({.counts = some, .n = 130, .k = 640, .y = Format::kF32});
  add({.counts = some, .n = 1003, .k = 2048, .before = 2});
  add({.counts = {1}, .n = 151, .k = 2048});
  std::vector<int64_t> many(300, 0);
  for (size_t e : {3, 255, 256, 299})
    many[e] = 1 + static_cast<int64_t>(e % 2);
  add({.counts = many, .n = 72, .k = 512});
}

/// K of multiples of 512, which are split over the warps of a block: experts without rows, with
/// one batch of eight and with two, tiles enough that each block has several.
void add_split_k_cases(CaseList& list) {
  const auto add = [&](const GroupedShape& s) { add_paired(list, s); };
  const std::vector<int64_t> some{0, 1, 3, 0, 0, 11, 8, 0};
  add({.counts = some, .n = 272, .k = 1536, .before = 1, .after = 2, .y_gap = 0});
  add({.counts = some, .n = 1008, .k = 2048, .y = Format::kF32});
  add({.counts = some, .n = 176, .k = 7168, .y = Format::kF16, .before = 2});
  add({.counts = some, .n = 48, .k = 2560});
  add({.counts = {1, 9, 2}, .n = 48, .k = 7680});
  std::vector<int64_t> many(200);
  for (size_t e = 0; e < many.size(); ++e)
    many[e] = static_cast<int64_t>(e % 7 == 3 ? 9 : e % 3);
  add({.counts = many, .n = 160, .k = 1536});
}

/// MXFP4: experts without rows, rows of no expert, both layouts; and experts of DeepSeek-V4, few of
/// them, for a token, eight and 128.
void add_mxfp4_cases(CaseList& list) {
  const auto add = [&](GroupedShape s) {
    s.weight = Format::kMxfp4;
    add_grouped_case<Nvfp4GroupGemm>(list, s);
  };
  add({.counts = {0, 0, 0}, .n = 32, .k = 64});
  add({.counts = {1, 0, 2, 3}, .n = 48, .k = 160, .y = Format::kF32});
  add({.counts = {5, 17, 0, 9, 1, 33}, .n = 80, .k = 320, .before = 2, .after = 3});
  add({.counts = {300, 1, 20}, .n = 16, .k = 32});
  add({.counts = {3, 10, 0, 1}, .n = 33, .k = 160, .layout = WeightLayout::kRowMajor});
  add({.counts = {3, 10, 0, 1}, .n = 48, .k = 160, .x = Format::kF32, .y = Format::kF32});
  add({.counts = {2, 0, 1}, .n = 2048, .k = 4096});
  add({.counts = {2, 0, 1}, .n = 4096, .k = 2048});
  add({.counts = {1, 2}, .n = 3072, .k = 7168});
  add({.counts = {1, 2}, .n = 7168, .k = 3072});
  for (const std::vector<int64_t>& counts :
       std::initializer_list<std::vector<int64_t>>{{1, 1, 0, 1, 1, 0, 1, 1},
                                                   {6, 7, 4, 8, 6, 3, 5, 9},
                                                   {96, 101, 88, 97, 95, 90, 99, 102}}) {
    const auto timed = [&](const char* op, int64_t n, int64_t k) {
      add({.counts = counts, .n = n, .k = k, .top_k = 6, .op = op});
    };
    timed("v4_flash_experts_gate_up", 4096, 4096);
    timed("v4_flash_experts_down", 4096, 2048);
    timed("v4_pro_experts_gate_up", 6144, 7168);
    timed("v4_pro_experts_down", 7168, 3072);
  }
}

/// A gate where no GPU reads weights in tiles, and widths that no tile has.
void add_stored_gated_cases(CaseList& list) {
  const auto add = [&](GroupedShape s) {
    s.gated = true;
    s.limit = 1;
    add_grouped_case<Nvfp4GroupGemm>(list, s);
  };
  add({.counts = {5, 17, 0, 9}, .n = 80, .k = 320, .weight = Format::kMxfp4, .before = 2});
  add({.counts = {3, 10, 0, 1},
       .n = 34,
       .k = 160,
       .weight = Format::kMxfp4,
       .layout = WeightLayout::kRowMajor});
  add({.counts = {3, 10, 0, 1},
       .n = 38,
       .k = 144,
       .weight = Format::kNvfp4,
       .x = Format::kF32,
       .layout = WeightLayout::kRowMajor});
}

}  // namespace

void add_nvfp4_group_gemm_cases(CaseList& list) {
  add_small_grouped_cases<Nvfp4GroupGemm>(list, Format::kNvfp4);
  add_expert_cases<Nvfp4GroupGemm>(list, Format::kNvfp4);
  add_mxfp4_cases(list);
  const ExpertLoad few{.counts = {3, 0, 11, 2}};
  for (WeightForm form : {WeightForm::kReference, WeightForm::kRowMajor, WeightForm::kRows16}) {
    for (const ExpertLoad& load : small_loads())
      add_quantised(list, {.load = load, .n = 128, .k = 192, .weight = form});
    for (int64_t k : {16, 48, 64, 80, 272})
      add_quantised(list, {.load = few, .n = 48, .k = k, .weight = form});
    for (Format y : {Format::kF32, Format::kF16})
      add_quantised(list, {.load = few, .n = 144, .k = 128, .y = y, .weight = form});
    add_quantised(list, {.load = few, .n = 64, .k = 256, .weight = form, .swizzled_x = false});
    add_quantised(list, {.load = few, .n = 64, .k = 320, .weight = form, .dist = Dist::kMixedRows});
    if (form == WeightForm::kReference) continue;
    add_quantised(list, {.load = few, .n = 64, .k = 256, .weight = form, .alphas = false});
  }
  add_quantised(list, {.load = few, .n = 33, .k = 64});
  // More experts than tiles have room for, with rows enough for them.
  add_quantised(list, {.load = {.counts = std::vector<int64_t>(500, 17)},
                       .n = 16,
                       .k = 128,
                       .weight = WeightForm::kRows16,
                       .swizzled_x = false});
  for (int64_t tokens : {1, 8, 512}) {
    const ExpertLoad load = even_load(tokens, 8, 256);
    const auto add = [&](const char* op, int64_t n, int64_t k) {
      add_quantised(
          list,
          {.load = load, .n = n, .k = k, .weight = WeightForm::kRows16, .top_k = 8, .op = op});
    };
    add("r1_experts_gate_up", 4096, 7168);
    add("r1_experts_down", 7168, 2048);
  }
  const ReferenceLimit limit{.most_tokens = 2048,
                             .why = "the published benchmark has fewer tokens"};
  for (const ReferencePoint& p : reference_points(list, "nvfp4_group_gemm", limit)) {
    const auto reference = [&](const char* op, int64_t n, int64_t k) {
      const ExpertLoad load = even_load(p.tokens(), 8, 256);
      const double flops = 2.0 * static_cast<double>(load.rows() * n * k);
      add_reference_case(list, p, {.op = op, .flops = flops}, [&](CaseList& one) {
        add_grouped_case<Nvfp4GroupGemm>(one, {.counts = load.counts,
                                               .n = n,
                                               .k = k,
                                               .weight = Format::kNvfp4,
                                               .top_k = 8,
                                               .op = op,
                                               .ring_bytes = kExpertRing});
      });
    };
    reference("experts_gate_up", 4096, 7168);
    reference("experts_down", 7168, 2048);
  }
  list.serve_calls("nvfp4_group_gemm", add_grouped_call<Nvfp4GroupGemm>);
  // Large ones for GPUs come last, as those of nvfp4_gemm do.
  add_tile_cases(list);
  add_few_row_cases(list);
  add_split_k_cases(list);
  add_gated_cases<Nvfp4GroupGemm>(list, Format::kNvfp4);
  add_stored_gated_cases(list);
  add_gated_experts<Nvfp4GroupGemm>(list, Format::kNvfp4, "v4_flash_experts_gate_up_act",
                                    {.counts = {}, .n = 4096, .k = 4096, .top_k = 6, .limit = 10});
  add_gated_experts<Nvfp4GroupGemm>(list, Format::kNvfp4, "r1_experts_gate_up_act",
                                    {.counts = {}, .n = 4096, .k = 7168, .top_k = 8});
}

}  // namespace fathom
