#include <algorithm>

#include "fathom/formats/integer/group_int.h"
#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/moe/code_products.h"
#include "fathom/kernels/moe/grouped_rows.h"
#include "fathom/kernels/moe/w4a8_group_gemm/w4a8_group_gemm.h"

namespace fathom {
namespace {

using Args = W4a8GroupGemm::Args;

static_assert(kW4Group == kCodeBlock, "a scale of w4_fp8 is for one block of the loop");

DecodedRow bf16_row(int64_t k) {
  return DecodedRow::of(2, k, k / kCodeBlock);
}

DecodedRow f32_row(int64_t k) {
  return DecodedRow::of(4, k, 0);
}

/// Elements of the scales in memory: the reference's order in bf16, or the checkpoint's in float32.
CodeWeight code_weight(const QuantView& w) {
  const int64_t n = w.rows();
  const int64_t groups = w.cols() / kW4Group;
  const bool reference = w.scales.format == Format::kBf16;
  CodeWeight out{.type = CodeType::kInt4,
                 .codes = w.values.as<const uint8_t>(),
                 .n = n,
                 .k = w.cols(),
                 .row_bytes = w.cols() / 2,
                 .scales = w.scales.data,
                 .scale_type = reference ? CodeScale::kBf16 : CodeScale::kF32AsBf16,
                 .matrix_stride = n * groups,
                 .block_rows = 1,
                 .block_k = kW4Group};
  if (!reference) {  // [E, N, K/128]
    out.row_stride = groups;
    out.block_stride = 1;
  } else if (groups % 4 == 0) {  // [E, K/512, N*4]
    out.row_stride = 4;
    out.block_stride = 1;
  } else {  // [E, K/128, N]
    out.row_stride = 1;
    out.block_stride = n;
  }
  out.quad_stride = reference && groups % 4 == 0 ? 4 * n : 4 * out.block_stride;
  return out;
}

Status run(Exec& ex, const Args& a, ProductLoop loop, ElementType type) {
  FATHOM_ASSIGN(Products p, make_grouped_products(a.x, a.w, a.offsets, a.y));
  const ResultScaling scaling{.factor = *a.x_scale.as<const float>()};
  const CodeWeight weight = code_weight(a.w);
  p.scaling = &scaling;
  p.weight = &weight;
  p.decode_weight_row = decode_code_row;
  p.x_type = type;
  const bool bf16 = type == ElementType::kBf16;
  const DecodedRow row = bf16 ? bf16_row(p.k) : f32_row(p.k);
  return run_grouped_decoded(ex, p, row, loop, [&](int64_t r, std::byte* out) {
    const uint8_t* codes = a.x.as<const uint8_t>() + r * a.x.stride(0);
    if (!bf16) return decode_to_f32(Format::kE4m3, codes, p.k, reinterpret_cast<float*>(out));
    decode_to_bf16(Format::kE4m3, codes, p.k, row.scales_at, out);
    std::fill_n(reinterpret_cast<float*>(out + row.scales_at * row.element_bytes), p.k / kCodeBlock,
                1.0f);
  });
}

Status run_avx512(Exec& ex, const Args& a) {
  return run(ex, a, code_products_avx512, ElementType::kBf16);
}

Status run_portable(Exec& ex, const Args& a) {
  return run(ex, a, products_portable, ElementType::kF32);
}

}  // namespace

int64_t W4a8GroupGemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  const int64_t experts = a.w.values.dim(0);
  return std::max(grouped_workspace(experts, rows, bf16_row(k)),
                  grouped_workspace(experts, rows, f32_row(k))) +
         product_workspace(rows, k, num_threads);
}

Status W4a8GroupGemm::check(const Args& a) {
  if (a.w.layout != WeightLayout::kRowMajor || !a.w.values.contiguous()) {
    return invalid_argument(
        str_cat("w is ", describe(a.w.values), ", which must be packed and row-major"));
  }
  const View& s = a.w.scales;
  const int64_t count = a.w.values.dim(0) * a.w.rows() * (a.w.cols() / kW4Group);
  const bool known = s.format == Format::kBf16 || s.format == Format::kF32;
  if (known && s.numel() == count && s.contiguous()) return {};
  return invalid_argument(str_cat("w.scales is ", describe(s), ", expected ", count,
                                  " packed values of bf16 or f32, one for 128 columns of a row"));
}

namespace {

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;

}  // namespace

constinit const VariantTable<W4a8GroupGemm> w4a8_group_gemm_cpu{
    {"avx512", Isa::kAvx512, "", kTraits, run_avx512, MathUnit::kBf16},
    {"portable", Isa::kPortable, "", kTraits, run_portable},
};

}  // namespace fathom
