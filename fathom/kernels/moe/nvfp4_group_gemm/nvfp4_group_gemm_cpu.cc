#include <algorithm>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_rows.h"
#include "fathom/kernels/moe/grouped_rows.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {

/// Products::weight of the loops below.
struct Nvfp4Experts {
  const Nvfp4GroupGemm::Args& args;
  bool has_global_scales;  // row-major weights with a global scale of their own
};

namespace {

using Args = Nvfp4GroupGemm::Args;

constexpr int64_t kPaddedTo = 64;  // k of a super-tile

DecodedRow bf16_row(int64_t k) {
  return DecodedRow::of(2, align_up<int64_t>(k, kPaddedTo), 0);
}

DecodedRow f32_row(int64_t k) {
  return DecodedRow::of(4, k, 0);
}

/// Bytes of the scales of one expert's matrix.
int64_t matrix_scale_bytes(const Args& a) {
  const int64_t blocks = a.w.cols() / kNvfp4Block;
  return a.w_scale_layout == BlockScaleLayout::kLinear ? a.w.rows() * blocks
                                                       : swizzled_128x4_bytes(a.w.rows(), blocks);
}

// ---- rows of x ----

/// The expert of row r.
int64_t expert_of(const Args& a, int64_t r) {
  const auto* offsets = a.offsets.as<const int32_t>();
  return std::upper_bound(offsets, offsets + a.offsets.dim(0), r) - offsets - 1;
}

/// Calls put(k, value) for the values of row r, without alphas. Six significant bits: exact in
/// bf16.
template <class Put>
void decode_row(const Args& a, int64_t r, Put&& put) {
  const uint8_t* packed = a.x.as<const uint8_t>() + r * a.x.stride(0) / 2;
  const auto* scales = a.x_scales.as<const E4m3>();
  const int64_t blocks = a.x.dim(1) / kNvfp4Block;
  const bool linear = a.x_scale_layout == BlockScaleLayout::kLinear;
  int64_t scale_row = r;
  if (!linear) {
    const int64_t e = expert_of(a, r);
    scale_row = a.scale_offsets.as<const int32_t>()[e] + r - a.offsets.as<const int32_t>()[e];
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const float scale = to_float(linear ? scales[r * a.x_scales.stride(0) + b]
                                        : scales[swizzled_128x4_offset(scale_row, b, blocks)]);
    for (int64_t k = b * kNvfp4Block; k < (b + 1) * kNvfp4Block; ++k)
      put(k, to_float(unpack_e2m1(packed, k)) * scale);
  }
}

Status run_rows(Exec& ex, const Products& p, const Args& a, ProductLoop loop) {
  if (p.x_type == ElementType::kF32) {
    return run_grouped_decoded(ex, p, f32_row(p.k), loop, [&](int64_t r, std::byte* out) {
      auto* values = reinterpret_cast<float*>(out);
      decode_row(a, r, [&](int64_t k, float value) { values[k] = value; });
    });
  }
  const DecodedRow row = bf16_row(p.k);
  Products padded = p;
  padded.k = align_up<int64_t>(p.k, kPaddedTo);
  return run_grouped_decoded(ex, padded, row, loop, [&](int64_t r, std::byte* out) {
    auto* values = reinterpret_cast<Bf16*>(out);
    decode_row(a, r, [&](int64_t k, float value) { values[k] = bf16_from_float(value); });
    std::fill(values + a.x.dim(1), values + row.scales_at, Bf16{0});
  });
}

// ---- one expert at a time: its factor, its scales ----

float factor_of(const Nvfp4Experts& w, int64_t e) {
  float factor = w.args.alphas.present() ? w.args.alphas.as<const float>()[e] : 1.0f;
  if (w.has_global_scales) factor *= w.args.w.global.as<const float>()[e];
  return factor;
}

/// kRows16: global scales lie with the tiles.
template <ProductLoop kLoop>
void rows16_loop(const Products& p, const WorkItem& item, void* scratch) {
  const auto& w = p.weight.as<Nvfp4Experts>();
  const ResultScaling scaling{.factor = factor_of(w, item.matrix)};
  Products one = p;
  one.scaling = &scaling;
  kLoop(one, item, scratch);
}

/// kRowMajor: the loop reads the codes and scales of one matrix.
void row_major_loop(const Products& p, const WorkItem& item, void* scratch) {
  const auto& w = p.weight.as<Nvfp4Experts>();
  const Args& a = w.args;
  const ResultScaling scaling{.factor = factor_of(w, item.matrix)};
  const Nvfp4Scales scales{
      .scales = a.w.scales.as<const uint8_t>() + item.matrix * matrix_scale_bytes(a),
      .num_scales = a.w.cols() / kNvfp4Block,
      .swizzled = a.w_scale_layout != BlockScaleLayout::kLinear};
  Products one = p;
  one.scaling = &scaling;
  one.codes += item.matrix * p.n * p.row_bytes;
  one.weight = &scales;
  nvfp4_row_major_products_avx512(one, item, scratch);
}

/// Row n of expert e without its factor, for the portable loop.
void decode_weight(const Products& p, int64_t e, int64_t n, float* out) {
  const Args& a = p.weight.as<Nvfp4Experts>().args;
  const int64_t blocks = a.w.cols() / kNvfp4Block;
  const auto* packed = a.w.values.as<const uint8_t>() + (e * a.w.rows() + n) * (a.w.cols() / 2);
  const auto* scales = a.w.scales.as<const E4m3>() + e * matrix_scale_bytes(a);
  const bool linear = a.w_scale_layout == BlockScaleLayout::kLinear;
  for (int64_t k = 0; k < a.w.cols(); ++k) {
    const int64_t b = k / kNvfp4Block;
    const int64_t at = linear ? n * blocks + b : swizzled_128x4_offset(n, b, blocks);
    out[k] = to_float(unpack_e2m1(packed, k)) * to_float(scales[at]);
  }
}

/// The portable loop with the factor of the expert; row-major weights are decoded here.
void portable_loop(const Products& p, const WorkItem& item, void* scratch) {
  const auto& w = p.weight.as<Nvfp4Experts>();
  const ResultScaling scaling{.factor = factor_of(w, item.matrix)};
  Products one = p;
  one.scaling = &scaling;
  if (w.args.w.layout == WeightLayout::kRows16) {
    one.weight = &w.args.w;
  } else {
    one.decode_weight_row = decode_weight;
  }
  products_portable(one, item, scratch);
}

template <ProductLoop kLoop, ElementType kType>
Status run_quantised(Exec& ex, const Args& a) {
  FATHOM_ASSIGN(Products p, make_grouped_products(a.x, a.w, a.offsets, a.y));
  p.x_type = kType;
  const Nvfp4Experts weight{
      .args = a,
      .has_global_scales = a.w.layout == WeightLayout::kRowMajor && a.w.global.present()};
  p.weight = &weight;
  return run_rows(ex, p, a, kLoop);
}

Status run_product(Exec& ex, const Args& a) {
  if (a.x.format == Format::kNvfp4) return run_quantised<portable_loop, ElementType::kF32>(ex, a);
  return run_product_kernel<Args, products_portable>(ex, a);
}

Status run_portable(Exec& ex, const Args& a) {
  return run_gated(ex, a, run_product);
}

bool takes_rows16_quantised(const Args& a) {
  return a.x.format == Format::kNvfp4 && a.w.layout == WeightLayout::kRows16;
}

bool takes_row_major_quantised(const Args& a) {
  return a.x.format == Format::kNvfp4 && a.w.layout == WeightLayout::kRowMajor;
}

bool takes_rows16_plain(const Args& a) {
  return a.x.format != Format::kNvfp4 && a.w.layout == WeightLayout::kRows16;
}

// ---- checks ----

Status check_plain_x(const Args& a) {
  if (a.x_scales.present() || a.alphas.present()) {
    return invalid_argument(
        str_cat("x is ", format_name(a.x.format), ", which takes neither x_scales nor alphas"));
  }
  if (a.w_scale_layout != BlockScaleLayout::kLinear) {
    return invalid_argument("swizzled scales of w need x in nvfp4; unswizzle them at load time");
  }
  return check_weight(a.w);
}

Status check_linear_scales(const Args& a) {
  const View& s = a.x_scales;
  const int64_t blocks = a.x.dim(1) / kNvfp4Block;
  if (s.format == Format::kE4m3 && s.rank == 2 && s.dim(0) == a.x.dim(0) && s.dim(1) == blocks)
    return {};
  return invalid_argument(str_cat("x_scales is ", describe(s), ", expected [", a.x.dim(0), ", ",
                                  blocks, "] e4m3 for x of nvfp4"));
}

/// Every expert's scales must lie within x_scales and begin with a tile.
Status check_swizzled_scales(const Args& a) {
  const View& s = a.x_scales;
  const View& begins = a.scale_offsets;
  const int64_t experts = a.w.values.dim(0);
  const int64_t columns = align_up<int64_t>(a.x.dim(1) / kNvfp4Block, kSwizzleColumns);
  if (s.format != Format::kE4m3 || s.rank != 2 || s.dim(1) != columns || !s.contiguous()) {
    return invalid_argument(str_cat("x_scales is ", describe(s), ", expected packed e4m3 with ",
                                    columns, " columns, swizzled 128x4"));
  }
  if (begins.format != Format::kI32 || begins.rank != 1 || begins.dim(0) < experts) {
    return invalid_argument(str_cat("scale_offsets is ", describe(begins), ", expected ", experts,
                                    " i32, one an expert, for swizzled x_scales"));
  }
  if (!begins.readable() || !a.offsets.readable()) return {};
  const auto* offsets = a.offsets.as<const int32_t>();
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = int64_t{offsets[e + 1]} - offsets[e];
    const int64_t begin = begins.as<const int32_t>()[e];
    const int64_t end = align_up<int64_t>(begin + rows, kSwizzleRows);
    if (rows <= 0 || (begin >= 0 && begin % kSwizzleRows == 0 && end <= s.dim(0))) continue;
    return invalid_argument(str_cat("scale_offsets[", e, "] is ", begin, " for ", rows,
                                    " rows, expected a multiple of 128 so that they end within ",
                                    s.dim(0)));
  }
  return {};
}

Status check_swizzled_weight(const Args& a, GlobalScale global) {
  if (a.w.layout != WeightLayout::kRowMajor) {
    return invalid_argument("w has swizzled scales, which exist for row-major weights alone");
  }
  const int64_t experts = a.w.values.dim(0);
  const int64_t blocks = a.w.cols() / kNvfp4Block;
  QuantView linear = a.w;  // everything but the scales
  linear.scales = make_view(a.w.scales.data, {experts, a.w.rows(), blocks}, Format::kE4m3);
  FATHOM_TRY(check_weight(linear, global));
  const View& s = a.w.scales;
  const int64_t count = experts * swizzled_128x4_bytes(a.w.rows(), blocks);
  if (s.format == Format::kE4m3 && s.numel() == count && s.contiguous()) return {};
  return invalid_argument(str_cat("w.scales is ", describe(s), ", expected ", count,
                                  " e4m3: ", experts, " matrices of ", a.w.rows(), " rows of ",
                                  blocks, " blocks, each swizzled 128x4"));
}

}  // namespace

int64_t Nvfp4GroupGemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  int64_t decoded = 0;
  if (a.x.format == Format::kNvfp4) {
    const int64_t experts = a.w.values.dim(0);
    decoded = std::max(grouped_workspace(experts, rows, bf16_row(k)),
                       grouped_workspace(experts, rows, f32_row(k)));
  }
  return gated_workspace(a.gate, rows, a.w.rows()) + decoded +
         product_workspace(rows, align_up<int64_t>(k, kPaddedTo), num_threads);
}

Status Nvfp4GroupGemm::check(const Args& a) {
  FATHOM_TRY(check_output_gate(a.gate, a.x, a.w, a.y));
  if (a.x.format != Format::kNvfp4) return check_plain_x(a);
  if (a.w.format() != Format::kNvfp4) {
    return invalid_argument(str_cat("x is nvfp4 but w is ", format_name(a.w.format()),
                                    ", which takes x in bf16 and f32"));
  }
  if (a.x.dim(1) % kNvfp4Block != 0 || a.x.stride(0) % 2 != 0) {
    return invalid_argument(str_cat("x is ", describe(a.x), " with rows ", a.x.stride(0),
                                    " codes apart; nvfp4 activations need a K that is a multiple "
                                    "of 16 and rows of whole bytes"));
  }
  if (a.alphas.present() && (a.alphas.format != Format::kF32 || !a.alphas.contiguous() ||
                             a.alphas.numel() != a.w.values.dim(0))) {
    return invalid_argument(str_cat("alphas is ", describe(a.alphas), ", expected ",
                                    a.w.values.dim(0), " f32, one an expert"));
  }
  const bool linear = a.x_scale_layout == BlockScaleLayout::kLinear;
  FATHOM_TRY(linear ? check_linear_scales(a) : check_swizzled_scales(a));
  const auto global = a.alphas.present() ? GlobalScale::kOptional : GlobalScale::kNeeded;
  if (a.w_scale_layout != BlockScaleLayout::kLinear) return check_swizzled_weight(a, global);
  return check_weight(a.w, global);
}

namespace {

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<Nvfp4GroupGemm> nvfp4_group_gemm_cpu{
    {"amx", Isa::kAmx, "", kTraits, run_product_kernel<Args, nvfp4_products_amx>, MathUnit::kBf16,
     ungated<Args, is_rows16_bf16<Args>>},
    {"avx512", Isa::kAvx512, "", kTraits, run_product_kernel<Args, nvfp4_products_avx512>,
     MathUnit::kBf16, ungated<Args, is_rows16_bf16<Args>>},
    {"avx512_quantised_x", Isa::kAvx512, "", kTraits,
     run_quantised<rows16_loop<nvfp4_products_avx512>, ElementType::kBf16>, MathUnit::kBf16,
     takes_rows16_quantised},
    {"avx512_row_major_quantised_x", Isa::kAvx512, "", kTraits,
     run_quantised<row_major_loop, ElementType::kBf16>, MathUnit::kBf16, takes_row_major_quantised},
    {"avx2", Isa::kAvx2, "", kTraits, run_product_kernel<Args, nvfp4_products_avx2>, MathUnit::kF32,
     ungated<Args, takes_rows16_plain>},
    {"portable", Isa::kPortable, "", kTraits, run_portable, MathUnit::kF32, is_for_cpu<Args>},
};

}  // namespace fathom
