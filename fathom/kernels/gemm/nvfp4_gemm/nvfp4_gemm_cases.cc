#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {
namespace {

using K = Nvfp4Gemm;

/// The weight of a quantised product: as a model has it, as a checkpoint has it, or as the
/// reference call passes it, with swizzled scales and without a global scale.
enum class WeightForm { kRows16, kRowMajor, kReference };

struct Shape {
  int64_t t = 0;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  WeightForm weight = WeightForm::kReference;
  bool swizzled_x = true;
  Dist dist = Dist::kNormal;
  const char* op = "";
};

std::string suffix(const Shape& s) {
  std::string out = str_cat("quantised_", format_name(s.y));
  if (s.weight == WeightForm::kRows16) out += "_rows16";
  if (s.weight == WeightForm::kRowMajor) out += "_row_major";
  if (!s.swizzled_x) out += "_linear";
  if (s.dist != Dist::kNormal) out += "_mixed";
  return out;
}

/// E4M3 scales of [rows, blocks] as bytes in a tensor of u8, linear or swizzled with NaN as
/// padding.
class Scales {
 public:
  Scales(CaseData& c, const std::vector<E4m3>& linear, int64_t rows, int64_t blocks, bool swizzled)
      : blocks_(blocks), swizzled_(swizzled) {
    tensor_ = swizzled ? c.input({align_up(rows, kSwizzleRows), align_up(blocks, kSwizzleColumns)},
                                 Format::kU8)
                       : c.input({rows, blocks}, Format::kU8, {}, {.rows_per_batch = 1});
    tensor_.fill([](int64_t) { return 0x7F; });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t b = 0; b < blocks; ++b)
        tensor_.set(place(r, b), linear[static_cast<size_t>(r * blocks + b)].bits);
    }
  }

  double at(int64_t row, int64_t block) const {
    return double{to_float(E4m3{static_cast<uint8_t>(tensor_[place(row, block)])})};
  }

  View view(const Binding& at) const {
    View v = at(tensor_);
    v.format = Format::kE4m3;
    return v;
  }

  BlockScaleLayout layout() const {
    return swizzled_ ? BlockScaleLayout::kSwizzled128x4 : BlockScaleLayout::kLinear;
  }

 private:
  int64_t place(int64_t row, int64_t block) const {
    return swizzled_ ? swizzled_128x4_offset(row, block, blocks_) : row * blocks_ + block;
  }

  Tensor tensor_;
  int64_t blocks_;
  bool swizzled_;
};

double code_at(const Tensor& packed, int64_t row, int64_t k) {
  const auto byte = static_cast<uint8_t>(packed.at(row, k / 2));
  return double{to_float(unpack_e2m1(&byte, k % 2))};
}

/// A matrix in NVFP4: packed codes and scales; its exact values unless it is random codes.
struct Packed {
  Tensor codes;
  std::shared_ptr<Scales> scales;
  std::shared_ptr<std::vector<float>> exact;
  float global = 1.0f;

  double at(int64_t row, int64_t k) const {
    return code_at(codes, row, k) * scales->at(row, k / 16);
  }
};

float largest(const std::vector<float>& values) {
  float amax = 0;
  for (float v : values)
    amax = std::max(amax, std::fabs(v));
  return amax;
}

Packed packed_x(CaseData& c, const Shape& s) {
  Packed x;
  x.exact = random_values(c, s.t, s.k, {.dist = s.dist});
  x.global = nvfp4_global_scale(largest(*x.exact));
  std::vector<uint8_t> codes(x.exact->size() / 2);
  std::vector<E4m3> scales(x.exact->size() / 16);
  nvfp4_quantize_activations(x.exact->data(), s.t, s.k, 1.0f / x.global, codes.data(),
                             scales.data());
  x.codes = c.input({s.t, s.k / 2}, Format::kU8, {},
                    {.row_gap = *s.op != '\0' ? 0 : 5, .rows_per_batch = s.swizzled_x ? 0 : 1});
  put_codes(x.codes, codes);
  x.scales = std::make_shared<Scales>(c, scales, s.t, s.k / 16, s.swizzled_x);
  return x;
}

Packed packed_w(CaseData& c, const Shape& s) {
  Packed w;
  w.codes = c.input({s.n, s.k / 2}, Format::kU8);
  std::vector<E4m3> scales(static_cast<size_t>(s.n * s.k / 16));
  const double size = 1.0 / std::sqrt(double(std::max<int64_t>(1, s.k)));
  if (*s.op != '\0') {
    put_random_bytes(c, w.codes, [](uint8_t b) { return b; });
    for (E4m3& scale : scales)
      scale.bits = static_cast<uint8_t>(0x30 + c.rng().next_below(0x20));  // 0.5 to 7.5
    w.global = static_cast<float>(size / 9);
  } else {
    w.exact = random_values(c, s.n, s.k, {.scale = size});
    w.global = nvfp4_global_scale(largest(*w.exact));
    std::vector<uint8_t> codes(w.exact->size() / 2);
    const Status status =
        nvfp4_quantize_weights(w.exact->data(), s.n, s.k, w.global, codes.data(), scales.data());
    FATHOM_CHECK(status.ok(), status.message());
    put_codes(w.codes, codes);
  }
  w.scales = std::make_shared<Scales>(c, scales, s.n, s.k / 16, true);
  return w;
}

void expect_unquantised(CaseBuilder<K>& c,
                        const Shape& s,
                        const Tensor& y,
                        std::function<double(int64_t t, int64_t n)> exact) {
  if (*s.op != '\0' || s.dist != Dist::kNormal || s.t * s.n < 4096) return;
  c.expect_full_precision(y, {.diff = 1.3e-2}, std::move(exact));  // NVFP4 on both sides
}

Tensor output(CaseBuilder<K>& c, const Shape& s) {
  // Rows of swizzled scales cannot be cut by a slice of the first axis.
  if (!s.swizzled_x) c.set_batch(s.t);
  return c.output({s.t, s.n}, s.y,
                  {.row_gap = *s.op != '\0' ? 0 : 3, .rows_per_batch = s.swizzled_x ? 0 : 1});
}

void add_reference(CaseList& list, const Shape& s) {
  add_case<K>(list, product_case_spec(s.op, s.t, s.n, s.k, suffix(s)), [s](CaseBuilder<K>& c) {
    const Packed x = packed_x(c, s);
    const Packed w = packed_w(c, s);
    const Tensor alpha = c.input({1}, Format::kF32);
    alpha.set(0, double{x.global} * double{w.global});
    const Tensor y = output(c, s);
    c.bind([=](const Binding& at) {
      QuantView weight = QuantView::dense(as_format(at(w.codes), Format::kNvfp4, s.k));
      weight.scales = w.scales->view(at);
      return K::Args{.x = as_format(at(x.codes), Format::kNvfp4, s.k),
                     .w = weight,
                     .y = at(y),
                     .x_scales = x.scales->view(at),
                     .alpha = at(alpha),
                     .x_scale_layout = x.scales->layout(),
                     .w_scale_layout = w.scales->layout()};
    });
    const auto rows =
        std::make_shared<RowCache>(s.k, [=](int64_t n, int64_t k) { return w.at(n, k); });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t t, int64_t n) {
      const std::vector<double>& row = (*rows)(n);
      double sum = 0;
      for (int64_t k = 0; k < s.k; ++k)
        sum += x.at(t, k) * row[static_cast<size_t>(k)];
      return alpha[0] * sum;
    });
    expect_unquantised(
        c, s, y, [=](int64_t t, int64_t n) { return dot_rows(*x.exact, t, *w.exact, n, s.k); });
  });
}

/// Weights of the model, whose global scale multiplies beside that of the activations.
void add_with_global(CaseList& list, const Shape& s) {
  add_case<K>(list, product_case_spec(s.op, s.t, s.n, s.k, suffix(s)), [s](CaseBuilder<K>& c) {
    const bool bench = *s.op != '\0';
    const Packed x = packed_x(c, s);
    const CaseWeightSpec spec{.rows = s.n,
                              .cols = s.k,
                              .format = Format::kNvfp4,
                              .layout = s.weight == WeightForm::kRows16 ? WeightLayout::kRows16
                                                                        : WeightLayout::kRowMajor};
    const Weight w = bench ? c.weight_codes(spec) : c.weight(spec);
    const Tensor alpha = c.input({1}, Format::kF32);
    alpha.set(0, double{x.global});
    const Tensor y = output(c, s);
    c.bind([=](const Binding& at) {
      return K::Args{.x = as_format(at(x.codes), Format::kNvfp4, s.k),
                     .w = at(w),
                     .y = at(y),
                     .x_scales = x.scales->view(at),
                     .alpha = at(alpha),
                     .x_scale_layout = x.scales->layout()};
    });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t t, int64_t n) {
      const std::span<const float> row = w.row(n);
      double sum = 0;
      for (int64_t k = 0; k < s.k; ++k)
        sum += x.at(t, k) * double{row[static_cast<size_t>(k)]};
      return alpha[0] * sum;
    });
    expect_unquantised(c, s, y, [=](int64_t t, int64_t n) {
      const std::span<const float> row = w.exact_row(n);
      double sum = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += double{(*x.exact)[static_cast<size_t>(t * s.k + k)]} *
               double{row[static_cast<size_t>(k)]};
      }
      return sum;
    });
  });
}

void add(CaseList& list, const Shape& s) {
  if (s.weight == WeightForm::kReference) {
    add_reference(list, s);
  } else {
    add_with_global(list, s);
  }
}

void add_quantised_cases(CaseList& list) {
  for (WeightForm form : {WeightForm::kRows16, WeightForm::kRowMajor, WeightForm::kReference}) {
    for (int64_t t : {0, 1, 2, 3, 8, 9, 33, 127, 128, 129}) {
      add(list, {.t = t, .n = 32, .k = 96, .weight = form, .swizzled_x = t != 3});
    }
    for (int64_t n : {1, 15, 17, 64, 65, 130})
      add(list, {.t = 5, .n = n, .k = 128, .y = Format::kF16, .weight = form});
    for (int64_t k : {16, 32, 48, 64, 80, 256, 272, 320, 1040}) {
      add(list, {.t = 3, .n = 33, .k = k, .y = Format::kF32, .weight = form, .swizzled_x = false});
    }
    add(list, {.t = 150, .n = 128, .k = 128, .y = Format::kF16, .weight = form});
    add(list, {.t = 7, .n = 2600, .k = 384, .weight = form});
    add(list, {.t = 33, .n = 128, .k = 192, .weight = form, .swizzled_x = false});
    add(list, {.t = 14,
               .n = 48,
               .k = 320,
               .weight = form,
               .swizzled_x = false,
               .dist = Dist::kMixedRows});
    add(list, {.t = 600, .n = 16, .k = 64, .weight = form, .swizzled_x = false});
    add(list, {.t = 65, .n = 264, .k = 320, .weight = form});
    for (int64_t t : {1, 16, 512}) {
      const auto bench = [&](const char* op, int64_t n, int64_t k) {
        add(list, {.t = t, .n = n, .k = k, .weight = form, .op = op});
      };
      bench("r1_q_b_proj", 24576, 1536);
      bench("r1_shared_down_proj", 7168, 2048);
      if (t <= 16) bench("r1_o_proj", 7168, 16384);
    }
  }
}

/// Tiles of 192 or 256 rows of w on a GPU: one row of x more than a tile of them has, or the
/// fewest; rows of w that end soon after a tile or long after it; less than the 256 k of a stage of
/// weights, whole ones, and a quarter or two more.
void add_tile_cases(CaseList& list) {
  const auto add = [&](ProductShape s) {
    s.weight = Format::kNvfp4;
    s.x_gap = 8;
    add_product_case<K>(list, s);
  };
  for (int64_t t : {17, 257}) {
    add({.t = t, .n = 264, .k = 64});
    add({.t = t, .n = 1000, .k = 128});
    add({.t = t, .n = 264, .k = 320});
    add({.t = t, .n = 264, .k = 1088});
  }
  for (int64_t t : {65, 129}) {
    add({.t = t, .n = 1000, .k = 64});
    add({.t = t, .n = 264, .k = 128});
    add({.t = t, .n = 1000, .k = 320});
  }
  add({.t = 65, .n = 264, .k = 1088});
  add({.t = 40, .n = 264, .k = 512});
  // Few rows of x: as many as a tile has, fewer; slices of k; so many rows of w that tiles of 256
  // take one round and those of 192 two, and their slots serve several times.
  for (int64_t t : {9, 16, 32}) {
    add({.t = t, .n = 200, .k = 64});
    add({.t = t, .n = 1000, .k = 320});
    add({.t = t, .n = 385, .k = 1088, .y = Format::kF16});
    add({.t = t, .n = 262, .k = 2048, .y_gap = 0});
    add({.t = t, .n = 25700, .k = 64});
  }
  add({.t = 16, .n = 25700, .k = 1088});
  add({.t = 24, .n = 40000, .k = 320});
  // Tiles that the multiprocessors of an H200 share, by estimates (tile_cost): one and a part of
  // another each, parts of two and of many.
  add({.t = 17, .n = 33900, .k = 1088});
  add({.t = 9, .n = 4300, .k = 7232});
  add({.t = 9, .n = 1100, .k = 16448, .y_gap = 0});
  // Rows of y at multiples of two bytes, of four, and other outputs; slices of k among them.
  for (int64_t n : {261, 262}) {
    for (int64_t t : {17, 65, 257})
      add({.t = t, .n = n, .k = 192, .y_gap = 0});
  }
  add({.t = 33, .n = 261, .k = 2048, .y_gap = 0});
  add({.t = 70, .n = 264, .k = 192, .y = Format::kF16});
  add({.t = 257, .n = 261, .k = 192, .y = Format::kF16, .y_gap = 0});
}

/// Few rows of x and whole blocks of 128 k: rows of w that end within a tile, one tile or many,
/// one block of k, odd numbers of them and many.
void add_few_row_cases(CaseList& list) {
  const auto add = [&](ProductShape s) {
    s.weight = Format::kNvfp4;
    s.x_gap = 8;
    add_product_case<K>(list, s);
  };
  for (int64_t t : {1, 2, 8}) {
    add({.t = t, .n = 2, .k = 128});
    add({.t = t, .n = 1002, .k = 128});
    add({.t = t, .n = 261, .k = 256, .y_gap = 0});
    add({.t = t, .n = 130, .k = 640, .y = Format::kF32});
    add({.t = t, .n = 263, .k = 1536, .y = Format::kF16});
    add({.t = t, .n = 4501, .k = 512});
  }
  for (int64_t t : {1, 3, 5})
    add({.t = t, .n = 2035, .k = 2048});
  for (int64_t t : {1, 2})
    add({.t = t, .n = 151, .k = 7168});
  // So many rows of w that blocks stay for many tiles; eight rows of x, sixteen and more.
  for (int64_t t : {2, 11, 19})
    add({.t = t, .n = 7174, .k = 2176});
}

/// Few rows of x and 16 MiB of codes, or 4 MiB and five rows or at most 2,112 rows of w, K a
/// multiple of 512, as many as it may be: split over the warps of a block. Smaller ones are among
/// the cases of experts.
void add_split_k_cases(CaseList& list) {
  const auto add = [&](ProductShape s) {
    s.weight = Format::kNvfp4;
    s.x_gap = 8;
    add_product_case<K>(list, s);
  };
  add({.t = 8, .n = 21856, .k = 1536, .y = Format::kF32});
  add({.t = 8, .n = 2112, .k = 4096});
  add({.t = 8, .n = 2112, .k = 7168});
  add({.t = 3, .n = 2112, .k = 7680, .y_gap = 0});
}

/// Up to sixteen rows of x, whole tiles of sixteen rows of w and k in up to eight parts of 256, or
/// in eight of 192, or two or four times as many: brought while the kernel before computes. One to
/// eight warps share the k, and one, two or four blocks; several tiles a block, unevenly many a
/// block and a warp; the last four have tiles that come late, and the last adds up sums twice.
void add_prefetched_cases(CaseList& list) {
  const auto add = [&](ProductShape s) {
    s.weight = Format::kNvfp4;
    s.x_gap = 8;
    add_product_case<K>(list, s);
  };
  add({.t = 1, .n = 16, .k = 256});
  add({.t = 2, .n = 48, .k = 512, .y = Format::kF32});
  add({.t = 7, .n = 176, .k = 1536, .y_gap = 0});
  add({.t = 9, .n = 528, .k = 7168});
  add({.t = 16, .n = 1040, .k = 4096, .y = Format::kF16});
  add({.t = 16, .n = 2128, .k = 4096, .y_gap = 0});
  add({.t = 3, .n = 32, .k = 768});
  add({.t = 8, .n = 8464, .k = 512, .y_gap = 0});
  add({.t = 13, .n = 8480, .k = 1280, .y_gap = 0});
  add({.t = 16, .n = 64, .k = 1536});
  add({.t = 1, .n = 1072, .k = 3072, .y = Format::kF32});
  add({.t = 11, .n = 496, .k = 6144});
  add({.t = 6, .n = 352, .k = 1792, .y = Format::kF32});
  add({.t = 14, .n = 1040, .k = 3584, .y_gap = 0});
  add({.t = 5, .n = 4096, .k = 7168});
  add({.t = 16, .n = 6352, .k = 3072, .y_gap = 0});
  add({.t = 4, .n = 19040, .k = 1024});
  add({.t = 10, .n = 4336, .k = 6144, .y_gap = 0});
}

/// Five rows of x of few k and many rows of w fill tiles.
void add_short_row_cases(CaseList& list) {
  for (int64_t t : {4, 5, 8, 9, 16})
    add_product_case<K>(list, {.t = t, .n = 16400, .k = 128, .weight = Format::kNvfp4});
}

void add_plain_x_cases(CaseList& list) {
  add_small_product_cases<K>(list, Format::kNvfp4, 300,
                             {Format::kBf16, Format::kF32, Format::kF16});
  add_product_case<K>(list, {.t = 9, .n = 17, .k = 16448, .weight = Format::kNvfp4});
  for (int64_t t : {1, 8, 16, 512}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add_product_case<K>(list, {.t = t, .n = n, .k = k, .weight = Format::kNvfp4, .op = op});
    };
    bench("r1_o_proj", 7168, 16384);
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_shared_gate_up_proj", 4096, 7168);
    bench("r1_shared_down_proj", 7168, 2048);
    bench("r1_kv_b_proj", 32768, 512);
    bench("v2lite_o_proj", 2048, 2048);
    bench("v2lite_shared_gate_up_proj", 5632, 2048);
  }
  for (int64_t t : {1, 8, 16, 32}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add_product_case<K>(list, {.t = t, .n = n, .k = k, .weight = Format::kNvfp4, .op = op});
    };
    bench("r1_qkv_a_proj", 2112, 7168);
    bench("r1_dense_gate_up_proj", 36864, 7168);
    bench("r1_dense_down_proj", 7168, 18432);
  }
}

/// MXFP4: few and many rows, edges of row groups and of super-tiles, both layouts, both types of x;
/// and experts and shared experts of DeepSeek-V4, as one matrix.
void add_mxfp4_cases(CaseList& list) {
  const auto add = [&](ProductShape s) {
    s.weight = Format::kMxfp4;
    add_product_case<K>(list, s);
  };
  for (int64_t t : {0, 1, 2, 3, 4, 7, 8, 9, 33, 300})
    add({.t = t, .n = 48, .k = 160});
  for (int64_t n : {1, 15, 16, 17, 130})
    add({.t = 5, .n = n, .k = 128, .y = Format::kF32});
  for (int64_t k : {32, 64, 96, 256, 544, 4384}) {
    add({.t = 3, .n = 33, .k = k, .y = Format::kF16});
    add({.t = 12, .n = 33, .k = k, .y = Format::kF32});
  }
  for (Format x : {Format::kBf16, Format::kF32}) {
    add({.t = 1, .n = 33, .k = 160, .x = x, .layout = WeightLayout::kRowMajor});
    add({.t = 10, .n = 19, .k = 288, .x = x, .layout = WeightLayout::kRowMajor});
  }
  add({.t = 10, .n = 40, .k = 320, .x = Format::kF32, .y = Format::kF32});
  add({.t = 14, .n = 34, .k = 320, .dist = Dist::kMixedRows});
  add({.t = 70, .n = 264, .k = 320, .x_gap = 8});
  add({.t = 2, .n = 2048, .k = 4096});
  add({.t = 1, .n = 4096, .k = 2048});
  add({.t = 2, .n = 3072, .k = 7168});
  add({.t = 1, .n = 7168, .k = 3072});
  for (int64_t t : {1, 8, 128}) {
    add({.t = t, .n = 4096, .k = 4096, .op = "v4_flash_expert_gate_up"});
    add({.t = t, .n = 4096, .k = 2048, .op = "v4_flash_expert_down"});
    add({.t = t, .n = 6144, .k = 7168, .op = "v4_pro_expert_gate_up"});
    add({.t = t, .n = 7168, .k = 3072, .op = "v4_pro_expert_down"});
  }
}

}  // namespace

void add_nvfp4_gemm_cases(CaseList& list) {
  add_plain_x_cases(list);
  add_quantised_cases(list);
  add_mxfp4_cases(list);
  // Large ones for GPUs come last: a test makes cases until every CPU variant has had one.
  add_tile_cases(list);
  add_few_row_cases(list);
  add_split_k_cases(list);
  add_prefetched_cases(list);
  add_short_row_cases(list);
  const auto reference = [&](const char* op, int64_t n, int64_t k) {
    add_reference_products<K>(list, op, {.n = n, .k = k, .weight = Format::kNvfp4});
  };
  reference("q_b_proj", 24576, 1536);
  reference("kv_b_proj", 32768, 512);
  reference("o_proj", 7168, 16384);
  reference("shared_experts_gate_up", 4096, 7168);
  reference("shared_experts_down", 7168, 2048);
  list.serve_calls("nvfp4_gemm", add_product_call<K>);
}

}  // namespace fathom
