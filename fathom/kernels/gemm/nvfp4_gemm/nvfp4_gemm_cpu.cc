#include <algorithm>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cpu/products/decoded_rows.h"
#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_rows.h"

namespace fathom {
namespace {

using Args = Nvfp4Gemm::Args;

constexpr int64_t kPaddedTo = 64;  // k of a super-tile

DecodedRow bf16_row(int64_t k) {
  return DecodedRow::of(2, align_up<int64_t>(k, kPaddedTo), 0);
}

DecodedRow f32_row(int64_t k) {
  return DecodedRow::of(4, k, 0);
}

float x_scale(const Args& a, int64_t t, int64_t block) {
  const auto* scales = a.x_scales.as<const E4m3>();
  if (a.x_scale_layout == BlockScaleLayout::kLinear) {
    return to_float(scales[t * a.x_scales.stride(0) + block]);
  }
  return to_float(scales[swizzled_128x4_offset(t, block, a.x.dim(1) / kNvfp4Block)]);
}

/// Calls put(k, value) for the values of a row, without alpha.
template <class Put>
void decode_row(const Args& a, int64_t t, Put&& put) {
  const uint8_t* packed = a.x.as<const uint8_t>() + t * a.x.stride(0) / 2;
  for (int64_t b = 0; b < a.x.dim(1) / kNvfp4Block; ++b) {
    const float scale = x_scale(a, t, b);
    for (int64_t k = b * kNvfp4Block; k < (b + 1) * kNvfp4Block; ++k)
      put(k, to_float(unpack_e2m1(packed, k)) * scale);
  }
}

/// The weight with linear scales, for the portable loop.
QuantView with_linear_scales(Exec& ex, const Args& a, uint8_t* memory) {
  QuantView w = a.w;
  if (a.w_scale_layout == BlockScaleLayout::kLinear) return w;
  const int64_t blocks = w.cols() / kNvfp4Block;
  const auto* swizzled = w.scales.as<const uint8_t>();
  const int64_t tiles = ceil_div(w.rows(), kSwizzleRows);
  const int64_t tile_row_bytes = swizzled_128x4_bytes(kSwizzleRows, blocks);
  for_rows(ex, tiles, 2 * tile_row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      unswizzle_128x4(swizzled + i * tile_row_bytes,
                      std::min(kSwizzleRows, w.rows() - i * kSwizzleRows), blocks,
                      memory + i * kSwizzleRows * blocks);
    }
  });
  w.scales = make_view(memory, {w.rows(), blocks}, Format::kE4m3);
  return w;
}

int64_t linear_scales_workspace(const Args& a) {
  if (a.w_scale_layout == BlockScaleLayout::kLinear) return 0;
  return align_up<int64_t>(a.w.rows() * (a.w.cols() / kNvfp4Block), 64);
}

Status run_decoded_to(Exec& ex, const Products& p, const Args& a, ProductLoop loop) {
  if (p.x_type == ElementType::kF32) {
    return run_decoded(ex, p, f32_row(p.k), loop, [&](int64_t, int64_t t, std::byte* out) {
      auto* values = reinterpret_cast<float*>(out);
      decode_row(a, t, [&](int64_t k, float value) { values[k] = value; });
    });
  }
  const DecodedRow row = bf16_row(p.k);
  Products padded = p;
  padded.k = align_up<int64_t>(p.k, kPaddedTo);
  return run_decoded(ex, padded, row, loop, [&](int64_t, int64_t t, std::byte* out) {
    auto* values = reinterpret_cast<Bf16*>(out);
    decode_row(a, t, [&](int64_t k, float value) { values[k] = bf16_from_float(value); });
    std::fill(values + a.x.dim(1), values + row.scales_at, Bf16{0});
  });
}

Status check_scales(
    std::string_view name, const View& s, BlockScaleLayout layout, int64_t rows, int64_t blocks) {
  const bool swizzled = layout == BlockScaleLayout::kSwizzled128x4;
  const int64_t count = swizzled ? swizzled_128x4_bytes(rows, blocks) : rows * blocks;
  const bool packed = swizzled ? s.contiguous() : s.rank == 2 && s.dim(0) == rows;
  if (s.format == Format::kE4m3 && s.numel() == count && packed) return {};
  return invalid_argument(str_cat(name, " is ", describe(s), ", expected ", count, " e4m3 for ",
                                  rows, " rows of ", blocks,
                                  swizzled ? " blocks, swizzled 128x4" : " blocks"));
}

Status check_plain_x(const Args& a) {
  if (a.x_scales.present() || a.alpha.present()) {
    return invalid_argument(
        str_cat("x is ", format_name(a.x.format), ", which takes neither x_scales nor alpha"));
  }
  if (a.w_scale_layout != BlockScaleLayout::kLinear) {
    return invalid_argument("swizzled scales of w need x in nvfp4; unswizzle them at load time");
  }
  return check_weight(a.w);
}

Status check_swizzled_weight(const Args& a) {
  if (a.w.layout != WeightLayout::kRowMajor) {
    return invalid_argument("w has swizzled scales, which exist for row-major weights alone");
  }
  QuantView linear = a.w;  // everything but the scales
  linear.scales = make_view(a.w.scales.data, {a.w.rows(), a.w.cols() / kNvfp4Block}, Format::kE4m3);
  FATHOM_TRY(
      check_weight(linear, a.alpha.present() ? GlobalScale::kOptional : GlobalScale::kNeeded));
  return check_scales("w.scales", a.w.scales, a.w_scale_layout, a.w.rows(),
                      a.w.cols() / kNvfp4Block);
}

bool takes_rows16_quantised(const Args& a) {
  return a.x.format == Format::kNvfp4 && a.w.layout == WeightLayout::kRows16;
}

bool takes_row_major_quantised(const Args& a) {
  return a.x.format == Format::kNvfp4 && a.w.layout == WeightLayout::kRowMajor;
}

}  // namespace

int64_t Nvfp4Gemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  int64_t decoded = 0;
  if (a.x.format == Format::kNvfp4) {
    decoded = linear_scales_workspace(a) + std::max(decoded_workspace(1, rows, bf16_row(k)),
                                                    decoded_workspace(1, rows, f32_row(k)));
  }
  return decoded + product_workspace(rows, align_up<int64_t>(k, kPaddedTo), num_threads);
}

Status Nvfp4Gemm::check(const Args& a) {
  if (a.x.format != Format::kNvfp4) return check_plain_x(a);
  if (a.w.format() != Format::kNvfp4) {
    return invalid_argument(str_cat("x is nvfp4 but w is ", format_name(a.w.format()),
                                    ", which takes x in bf16 and f32"));
  }
  const int64_t k = a.x.dim(1);
  if (k % kNvfp4Block != 0 || a.x.stride(0) % 2 != 0) {
    return invalid_argument(str_cat("x is ", describe(a.x), " with rows ", a.x.stride(0),
                                    " codes apart; nvfp4 activations need a K that is a multiple "
                                    "of 16 and rows of whole bytes"));
  }
  FATHOM_TRY(check_scales("x_scales", a.x_scales, a.x_scale_layout, a.x.dim(0), k / kNvfp4Block));
  if (a.alpha.present() && (a.alpha.format != Format::kF32 || a.alpha.numel() != 1)) {
    return invalid_argument(str_cat("alpha is ", describe(a.alpha), ", expected one f32"));
  }
  if (a.w_scale_layout == BlockScaleLayout::kSwizzled128x4) return check_swizzled_weight(a);
  return check_weight(a.w, a.alpha.present() ? GlobalScale::kOptional : GlobalScale::kNeeded);
}

Status run_quantised_x(Exec& ex, const Args& a, ProductLoop loop, ElementType type) {
  Products p = make_products(a.x, a.w, a.y);
  p.x_type = type;
  ResultScaling scaling{.factor = a.alpha.present() ? *a.alpha.as<const float>() : 1.0f};
  p.scaling = &scaling;
  if (type == ElementType::kBf16 && a.w.layout == WeightLayout::kRows16) {
    return run_decoded_to(ex, p, a, loop);
  }
  if (type == ElementType::kBf16) {
    const Nvfp4Scales scales{.scales = a.w.scales.as<const uint8_t>(),
                             .num_scales = p.k / kNvfp4Block,
                             .swizzled = a.w_scale_layout != BlockScaleLayout::kLinear};
    p.weight = &scales;
    if (a.w.global.present()) scaling.factor *= *a.w.global.as<const float>();
    return run_decoded_to(ex, p, a, loop);
  }
  void* const whole = ex.workspace;
  const QuantView w = with_linear_scales(ex, a, static_cast<uint8_t*>(whole));
  p.weight = &w;
  ex.workspace = static_cast<std::byte*>(whole) + linear_scales_workspace(a);
  Status status = run_decoded_to(ex, p, a, loop);
  ex.workspace = whole;
  return status;
}

namespace {

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<Nvfp4Gemm> nvfp4_gemm_cpu = with_rows<Nvfp4Gemm>(
    {
        {"avx512_quantised_x", Isa::kAvx512, "", kTraits,
         run_quantised_x_as_bf16<Args, nvfp4_products_avx512>, MathUnit::kBf16,
         takes_rows16_quantised},
        {"avx512_row_major_quantised_x", Isa::kAvx512, "", kTraits,
         run_quantised_x_as_bf16<Args, nvfp4_row_major_products_avx512>, MathUnit::kBf16,
         takes_row_major_quantised},
    },
    product_variants<Nvfp4Gemm, nvfp4_products_amx, nvfp4_products_avx512, nvfp4_products_avx2>());

}  // namespace fathom
