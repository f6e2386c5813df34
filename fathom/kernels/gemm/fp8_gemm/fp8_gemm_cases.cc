#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {
namespace {

// ---- fp8_block_gemm with quantised activations ----

enum class XScales { kRowMajor, kColumnMajor, kTmaAligned };

struct BlockShape {
  int64_t t = 0;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  XScales scales = XScales::kColumnMajor;
  WeightLayout layout = WeightLayout::kRowMajor;
  Format weight = Format::kFp8Block;
  Dist dist = Dist::kNormal;
  int64_t x_gap = 9;  ///< codes after each row; multiples of 16 leave rows that wide loads can take
  const char* op = "";
};

std::string suffix(const BlockShape& s) {
  std::string out = str_cat("quantised_", format_name(s.y));
  if (s.scales == XScales::kRowMajor) out += "_row_scales";
  if (s.scales == XScales::kTmaAligned) out += "_tma_scales";
  if (s.weight != Format::kFp8Block) str_append(out, str_cat("_", format_name(s.weight)));
  if (s.layout == WeightLayout::kRows16) out += "_rows16";
  if (s.dist != Dist::kNormal) out += "_mixed";
  if (s.x_gap % 16 == 0) out += "_aligned";
  return out;
}

/// Activations quantised in groups of 128.
struct GroupedX {
  Tensor codes, scales;
  std::shared_ptr<std::vector<float>> exact;
  int64_t row_stride = 0, block_stride = 0;  // of the scales

  double scale(int64_t t, int64_t block) const {
    return scales[t * row_stride + block * block_stride];
  }

  View scale_view(const Binding& at, int64_t t, int64_t blocks) const {
    View v = make_view(at(scales).data, {t, blocks}, Format::kF32);
    v.strides[0] = row_stride;
    v.strides[1] = block_stride;
    return v;
  }
};

GroupedX grouped_x(CaseData& c, const BlockShape& s) {
  const int64_t blocks = ceil_div(s.k, kFp8Block);
  const bool by_row = s.scales == XScales::kRowMajor;
  const int64_t stride = s.scales == XScales::kTmaAligned ? tma_aligned_stride(s.t) : s.t;
  GroupedX x;
  x.row_stride = by_row ? blocks : 1;
  x.block_stride = by_row ? 1 : stride;
  // Rows of column-major scales cannot be cut by a slice of the first axis.
  if (by_row) c.set_batch(s.t);
  x.codes = c.input({s.t, s.k}, Format::kE4m3, {},
                    {.row_gap = *s.op != '\0' ? 0 : s.x_gap, .rows_per_batch = by_row ? 1 : 0});
  x.scales = by_row ? c.input({s.t, blocks}, Format::kF32, {}, {.rows_per_batch = 1})
                    : c.input({blocks, stride}, Format::kF32);
  x.exact = random_values(c, s.t, s.k, {.dist = s.dist});
  std::vector<E4m3> codes(x.exact->size());
  std::vector<float> scales(static_cast<size_t>(s.t * blocks));
  fp8_quantize_groups(x.exact->data(), s.t, s.k, kFp8Block, kFp8SglangGroup, codes.data(),
                      scales.data());
  put_codes(x.codes, codes);
  // What lies between the columns is padding.
  x.scales.fill([](int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  for (int64_t t = 0; t < s.t; ++t) {
    for (int64_t b = 0; b < blocks; ++b) {
      x.scales.set(t * x.row_stride + b * x.block_stride,
                   double{scales[static_cast<size_t>(t * blocks + b)]});
    }
  }
  return x;
}

void add_block(CaseList& list, const BlockShape& s) {
  using K = Fp8BlockGemm;
  add_case<K>(list, product_case_spec(s.op, s.t, s.n, s.k, suffix(s)), [s](CaseBuilder<K>& c) {
    const bool bench = *s.op != '\0';
    const GroupedX x = grouped_x(c, s);
    const CaseWeightSpec spec{.rows = s.n, .cols = s.k, .format = s.weight, .layout = s.layout};
    const Weight w = bench ? c.weight_codes(spec) : c.weight(spec);
    const int64_t each = s.scales == XScales::kRowMajor ? 1 : 0;
    const Tensor y = c.output({s.t, s.n}, s.y, {.row_gap = bench ? 0 : 3, .rows_per_batch = each});
    c.bind([=](const Binding& at) {
      const View codes = at(x.codes);
      return K::Args{.x = as_format(codes, Format::kFp8Group, s.k),
                     .w = at(w),
                     .y = at(y),
                     .x_scales = x.scale_view(at, codes.dim(0), ceil_div(s.k, kFp8Block))};
    });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t t, int64_t n) {
      std::vector<double> row = x.codes.row(t);
      for (int64_t k = 0; k < s.k; ++k)
        row[static_cast<size_t>(k)] *= x.scale(t, k / kFp8Block);
      return dot(row, w.row(n));
    });
    if (bench || s.dist != Dist::kNormal || s.t * s.n < 4096) return;
    c.expect_full_precision(y, gates::full_precision(s.weight), [=](int64_t t, int64_t n) {
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

void add_block_cases(CaseList& list) {
  for (XScales scales : {XScales::kRowMajor, XScales::kColumnMajor, XScales::kTmaAligned}) {
    for (WeightLayout layout : {WeightLayout::kRowMajor, WeightLayout::kRows16}) {
      for (int64_t t : {0, 1, 3, 5, 13, 65, 127}) {
        add_block(list, {.t = t, .n = 128, .k = 256, .scales = scales, .layout = layout});
      }
      add_block(list, {.t = 7, .n = 150, .k = 300, .scales = scales, .layout = layout});
      add_block(list,
                {.t = 2, .n = 33, .k = 131, .y = Format::kF32, .scales = scales, .layout = layout});
    }
  }
  for (WeightLayout layout : {WeightLayout::kRowMajor, WeightLayout::kRows16}) {
    add_block(list, {.t = 9, .n = 256, .k = 512, .y = Format::kF16, .layout = layout});
    add_block(list,
              {.t = 4, .n = 48, .k = 384, .layout = layout, .weight = Format::kFp8BlockUe8m0});
    add_block(list, {.t = 14,
                     .n = 64,
                     .k = 320,
                     .scales = XScales::kRowMajor,
                     .layout = layout,
                     .dist = Dist::kMixedRows});
    for (int64_t k : {1, 2, 3, 127, 128, 129, 4224})
      add_block(list, {.t = 3, .n = 17, .k = k, .scales = XScales::kRowMajor, .layout = layout});
    add_block(list, {.t = 600, .n = 16, .k = 128, .scales = XScales::kRowMajor, .layout = layout});
    for (int64_t t : {1, 16, 512, 2048}) {
      const auto bench = [&](const char* op, int64_t n, int64_t k) {
        add_block(list, {.t = t, .n = n, .k = k, .layout = layout, .op = op});
      };
      bench("r1_q_b_proj", 24576, 1536);
      bench("r1_shared_down_proj", 7168, 2048);
      if (t <= 16 || t == 2048) bench("r1_o_proj", 7168, 16384);
    }
  }
  // Edges of tiles of tokens, of rows of w and of stages of k, where whole rows can be brought.
  const auto aligned = [&](BlockShape s) {
    s.x_gap = 16;
    add_block(list, s);
  };
  for (int64_t t : {1, 2, 63, 64, 65, 127, 128, 129, 300})
    aligned({.t = t, .n = 150, .k = 400, .y = t % 2 == 0 ? Format::kF16 : Format::kBf16});
  for (int64_t n : {1, 63, 64, 127, 128, 129, 256})
    aligned({.t = 70, .n = n, .k = 256, .scales = XScales::kTmaAligned});
  for (int64_t k : {16, 112, 128, 144, 1024, 4224})
    aligned({.t = 33, .n = 96, .k = k, .scales = XScales::kRowMajor});
  aligned({.t = 66, .n = 130, .k = 640, .weight = Format::kFp8BlockUe8m0});
  aligned({.t = 1024, .n = 4500, .k = 160});  // more tiles than multiprocessors
  aligned({.t = 330, .n = 700, .k = 3984});   // slices of K of tiles of 128 rows of x
  // Tiles of 128 rows of x, and whole sixteen bytes of y: three elements lie between its rows.
  for (int64_t t : {100, 128, 193})
    aligned({.t = t, .n = 253, .k = 528, .y = t == 128 ? Format::kF16 : Format::kBf16});
  aligned({.t = 140, .n = 389, .k = 272, .scales = XScales::kTmaAligned});
  aligned({.t = 140, .n = 389, .k = 272, .weight = Format::kFp8BlockUe8m0});
  aligned({.t = 66, .n = 130, .k = 640, .dist = Dist::kMixedRows});
}

void add_plain_x_cases(CaseList& list) {
  const std::vector<Format> y_types{Format::kBf16, Format::kF32, Format::kF16};
  add_small_product_cases<Fp8BlockGemm>(list, Format::kFp8Block, 300, y_types);
  for (int64_t t : {2, 9}) {
    for (WeightLayout layout : {WeightLayout::kRows16, WeightLayout::kRowMajor}) {
      // Partial blocks at the ends of N and K, and lengths that fill no quad of k.
      for (int64_t k : {2, 131, 300}) {
        add_product_case<Fp8BlockGemm>(
            list, {.t = t, .n = 150, .k = k, .weight = Format::kFp8BlockUe8m0, .layout = layout});
      }
    }
    add_product_case<Fp8BlockGemm>(list, {.t = t * 8,
                                          .n = 150,
                                          .k = 516,
                                          .weight = Format::kFp8Block,
                                          .layout = WeightLayout::kRowMajor});
  }
  // So many rows of w that a GPU sweeps them, for eight rows of x and more.
  for (int64_t t : {2, 11}) {
    add_product_case<Fp8BlockGemm>(
        list, {.t = t, .n = 7174, .k = 2176, .weight = Format::kFp8Block, .x_gap = 8});
  }
  // K of multiples of 512 and bytes enough: the warps of a block of a GPU split K. Rows of x of
  // different size, rows of w that end within 128, a tile a block and many.
  const auto split_k = [&](ProductShape s) {
    if (s.weight == Format::kBf16) s.weight = Format::kFp8Block;
    s.x_gap = 8;
    add_product_case<Fp8BlockGemm>(list, s);
  };
  split_k({.t = 8, .n = 10960, .k = 1536, .y = Format::kF32});
  split_k({.t = 5, .n = 2112, .k = 4096, .weight = Format::kFp8BlockUe8m0});
  split_k({.t = 8, .n = 2112, .k = 7168, .dist = Dist::kMixedRows});
  split_k({.t = 3, .n = 1040, .k = 7680, .y = Format::kF16, .y_gap = 0});
  // Weights that a GPU prefetches: parts of K by one block and by clusters of two and four, tiles
  // that come late, sums added up once and in two rounds.
  const auto ue8m0 = [&](ProductShape s) {
    s.weight = Format::kFp8BlockUe8m0;
    split_k(s);
  };
  ue8m0({.t = 1, .n = 8208, .k = 1024, .y_gap = 0});
  ue8m0({.t = 8, .n = 6352, .k = 1024, .y = Format::kF32});
  ue8m0({.t = 16, .n = 6352, .k = 1024, .y_gap = 0});
  ue8m0({.t = 9, .n = 2128, .k = 2048, .dist = Dist::kMixedRows});
  ue8m0({.t = 6, .n = 4224, .k = 4096, .dist = Dist::kMixedRows, .y_gap = 0});
  ue8m0({.t = 13, .n = 1552, .k = 8192, .y = Format::kF16});
  ue8m0({.t = 16, .n = 4112, .k = 8192, .y_gap = 0});
  split_k({.t = 11, .n = 2064, .k = 1536, .y_gap = 0});
  split_k({.t = 4, .n = 528, .k = 7168});
  // Tiles with scales that are powers of two: edges of all three axes, slices of K, whole rounds.
  for (int64_t t : {17, 32, 33, 64, 65, 128, 129, 300})
    ue8m0({.t = t, .n = 270, .k = 400, .y = t % 2 == 0 ? Format::kF16 : Format::kBf16});
  for (int64_t k : {16, 64, 112, 144, 1088})
    ue8m0({.t = 140, .n = 136, .k = k, .y_gap = 0});
  ue8m0({.t = 40, .n = 700, .k = 3984, .dist = Dist::kMixedRows});
  ue8m0({.t = 1024, .n = 4500, .k = 160});
  for (int64_t t : {1, 8, 512}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add_product_case<Fp8BlockGemm>(
          list, {.t = t, .n = n, .k = k, .weight = Format::kFp8Block, .op = op});
    };
    bench("r1_fused_qkv_a_proj", 2112, 7168);
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_o_proj", 7168, 16384);
    bench("r1_shared_gate_up_proj", 4096, 7168);
    bench("r1_shared_down_proj", 7168, 2048);
  }
}

// ---- fp8_block_bmm ----

void add_bmm_cases(CaseList& list) {
  const auto add = [&](ProductShape s) {
    s.y = s.x;
    add_product_case<Fp8BlockBmm>(list, s);
  };
  for (Format w : {Format::kFp8Block, Format::kFp8BlockUe8m0}) {
    for (int64_t t : {0, 1, 2, 5, 9, 33}) {
      add({.t = t, .n = 32, .k = 144, .weight = w, .heads = 3});
      add({.t = t, .n = 144, .k = 260, .weight = w, .x = Format::kF32, .heads = 2});
    }
    for (int64_t t : {1, 7, 70}) {
      add({.t = t, .n = 149, .k = 132, .weight = w, .layout = WeightLayout::kRowMajor, .heads = 3});
    }
  }
  add({.t = 4,
       .n = 21,
       .k = 33,
       .weight = Format::kFp8Block,
       .layout = WeightLayout::kRowMajor,
       .heads = 3});
  add({.t = 14,
       .n = 48,
       .k = 384,
       .weight = Format::kFp8Block,
       .heads = 2,
       .dist = Dist::kMixedRows});
  // Stacks that a GPU prefetches, and in tiles.
  for (int64_t t : {1, 8, 11, 16, 40, 200}) {
    add({.t = t, .n = 272, .k = 1024, .weight = Format::kFp8BlockUe8m0, .heads = 3, .x_gap = 8});
    add({.t = t,
         .n = 528,
         .k = 4096,
         .weight = t % 2 == 0 ? Format::kFp8BlockUe8m0 : Format::kFp8Block,
         .heads = 2,
         .x_gap = 8,
         .y_gap = 0});
  }
  for (int64_t t : {1, 8, 128}) {
    const auto timed = [&](const char* op, int64_t groups) {
      add({.t = t,
           .n = 1024,
           .k = 4096,
           .weight = Format::kFp8BlockUe8m0,
           .op = op,
           .heads = groups});
    };
    timed("v4_flash_o_a_proj", 8);
    timed("v4_pro_o_a_proj", 16);
  }
}

// ---- fp8_gemm ----

struct Shape {
  int64_t t = 0;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  Format bias = Format::kNone;
  Dist dist = Dist::kNormal;
  bool negative_scales = false;
  int64_t gap = 5;  ///< elements after each row of x and y; 16: rows that wide loads can take
  const char* op = "";
};

std::string suffix(const Shape& s) {
  std::string out = std::string(format_name(s.y));
  if (s.bias != Format::kNone) str_append(out, str_cat("_bias_", format_name(s.bias)));
  if (s.dist != Dist::kNormal) out += "_mixed";
  if (s.negative_scales) out += "_negative_scales";
  if (s.gap % 16 == 0) out += "_aligned";
  return out;
}

/// Codes with a scale per row; the exact values, or null for random codes (in a tensor of u8).
std::shared_ptr<std::vector<float>> fill_rows(
    CaseData& c, const Shape& s, const Tensor& codes, const Tensor& scales, const Fill& fill) {
  const int64_t rows = codes.dim(0);
  const int64_t k = codes.dim(1);
  if (codes.format() == Format::kU8 && *s.op != '\0') {
    // 7F and FF are NaN.
    put_random_bytes(
        c, codes, [](uint8_t b) { return static_cast<uint8_t>((b & 0x7F) == 0x7F ? b ^ 4 : b); });
    scales.fill([&](int64_t i) { return fill.scale * (1.0 + double(i % 3)) / 128; });
    return nullptr;
  }
  auto exact = random_values(c, rows, k, fill);
  std::vector<E4m3> quantised(exact->size());
  std::vector<float> scale(static_cast<size_t>(rows));
  if (k > 0) {
    fp8_quantize_groups(exact->data(), rows, k, k, kFp8PerToken, quantised.data(), scale.data());
  }
  put_codes(codes, quantised);
  scales.fill([&](int64_t i) {
    return scale[static_cast<size_t>(i)] * (s.negative_scales && i % 2 == 1 ? -1.0 : 1.0);
  });
  return exact;
}

void add(CaseList& list, const Shape& s) {
  add_case<Fp8Gemm>(
      list, product_case_spec(s.op, s.t, s.n, s.k, suffix(s)), [s](CaseBuilder<Fp8Gemm>& c) {
        c.set_batch(s.t);
        const int64_t gap = *s.op != '\0' ? 0 : s.gap;
        const Tensor x =
            c.input({s.t, s.k}, Format::kE4m3, {}, {.row_gap = gap, .rows_per_batch = 1});
        const Tensor x_scales = c.input({s.t}, Format::kF32, {}, {.rows_per_batch = 1});
        const Tensor w = c.input({s.n, s.k}, Format::kU8);
        const Tensor w_scales = c.input({s.n}, Format::kF32);
        const double w_size = 1.0 / std::sqrt(double(std::max<int64_t>(1, s.k)));
        const auto x_exact = fill_rows(c, s, x, x_scales, {.dist = s.dist});
        const auto w_exact = fill_rows(c, s, w, w_scales, {.scale = w_size});
        const Tensor bias = s.bias == Format::kNone ? Tensor() : c.input({s.n}, s.bias);
        const Tensor y = c.output({s.t, s.n}, s.y, {.row_gap = gap, .rows_per_batch = 1});
        c.bind([=](const Binding& at) {
          QuantView weight = QuantView::dense(as_format(at(w), Format::kFp8Channel, s.k));
          weight.scales = at(w_scales);
          return Fp8Gemm::Args{
              .x = at(x), .x_scales = at(x_scales), .w = weight, .bias = at(bias), .y = at(y)};
        });
        const auto rows = std::make_shared<RowCache>(s.k, [=](int64_t n, int64_t k) {
          return double{to_float(E4m3{static_cast<uint8_t>(w.at(n, k))})};
        });
        c.expect_each(y, gates::gemm(s.y), [=](int64_t t, int64_t n) {
          const double b = bias.present() ? bias[n] : 0.0;
          return dot(x.row(t), (*rows)(n)) * x_scales[t] * w_scales[n] + b;
        });
        const bool plain = s.dist == Dist::kNormal && !s.negative_scales && !bias.present();
        if (w_exact == nullptr || !plain || s.t * s.n < 4096) return;
        c.expect_full_precision(
            y, gates::full_precision(Format::kFp8Block),
            [=](int64_t t, int64_t n) { return dot_rows(*x_exact, t, *w_exact, n, s.k); });
      });
}

void add_channel_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 4, 5, 7, 13, 63, 64, 65})
    add(list, {.t = t, .n = 40, .k = 144});
  for (int64_t n : {1, 8, 15, 16, 17, 63, 64, 65, 80})
    add(list, {.t = 5, .n = n, .k = 128, .y = Format::kF16, .bias = Format::kF16});
  for (int64_t k : {1, 2, 3, 4, 5, 16, 64, 127, 128, 129, 255, 256, 257, 4112})
    add(list, {.t = 3, .n = 33, .k = k, .y = Format::kF32, .bias = Format::kF32});
  add(list, {.t = 70, .n = 96, .k = 320});
  add(list, {.t = 9, .n = 40, .k = 160, .bias = Format::kBf16});
  add(list, {.t = 9, .n = 40, .k = 160, .y = Format::kF32, .negative_scales = true});
  add(list, {.t = 14, .n = 40, .k = 160, .dist = Dist::kMixedRows});
  add(list, {.t = 600, .n = 16, .k = 64});  // more rows than are decoded at once
  const auto aligned = [&](Shape s) {
    s.gap = 16;
    add(list, s);
  };
  for (int64_t t : {1, 8, 17, 32, 33, 63, 64, 65, 127, 128, 129, 300})
    aligned({.t = t, .n = 150, .k = 400, .y = t % 2 == 0 ? Format::kF16 : Format::kBf16});
  for (int64_t n : {1, 63, 64, 127, 128, 129, 256})
    aligned({.t = 70, .n = n, .k = 256, .bias = Format::kBf16});
  for (int64_t k : {16, 112, 128, 144, 1024, 4224})
    aligned({.t = 40, .n = 96, .k = k, .y = Format::kF32, .bias = Format::kF32});
  aligned({.t = 66, .n = 130, .k = 640, .dist = Dist::kMixedRows});
  aligned({.t = 66, .n = 130, .k = 640, .negative_scales = true});
  aligned({.t = 1024, .n = 4500, .k = 96, .bias = Format::kBf16});  // more than multiprocessors
  for (int64_t t : {1, 16, 512, 2048}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add(list, {.t = t, .n = n, .k = k, .op = op});
    };
    bench("r1_fused_qkv_a_proj", 2112, 7168);
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_shared_down_proj", 7168, 2048);
    if (t <= 16 || t == 2048) bench("r1_o_proj", 7168, 16384);
  }
}

}  // namespace

void add_fp8_gemm_cases(CaseList& list) {
  add_plain_x_cases(list);
  add_block_cases(list);
  add_channel_cases(list);
  add_bmm_cases(list);
  list.serve_calls("fp8_block_bmm", add_product_call<Fp8BlockBmm>);
  list.serve_calls("fp8_block_gemm", add_product_call<Fp8BlockGemm>);
}

}  // namespace fathom
