#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/moe/fp8_group_gemm/skewed_schedule.h"
#include "fathom/kernels/moe/grouped_rows.h"

namespace fathom {
namespace {

using Args = Fp8GroupGemm::Args;

DecodedRow bf16_row(int64_t k) {
  return DecodedRow::of(2, k, ceil_div(k, kFp8Block));
}

DecodedRow f32_row(int64_t k) {
  return DecodedRow::of(4, k, 0);
}

float x_scale(const View& scales, int64_t r, int64_t block) {
  return scales.as<const float>()[r * scales.stride(0) + block * scales.stride(1)];
}

/// Codes as bf16, their scales behind them.
void decode_bf16_row(const Args& a, const DecodedRow& row, int64_t r, std::byte* out) {
  const int64_t k = a.x.dim(1);
  decode_to_bf16(Format::kE4m3, a.x.as<const uint8_t>() + r * a.x.stride(0), k, row.scales_at, out);
  auto* scales = reinterpret_cast<float*>(out + row.scales_at * row.element_bytes);
  for (int64_t b = 0; b < ceil_div(k, kFp8Block); ++b)
    scales[b] = x_scale(a.x_scales, r, b);
}

/// Values, each code times its scale.
void decode_f32_row(const Args& a, int64_t r, float* out) {
  const int64_t k = a.x.dim(1);
  decode_to_f32(Format::kE4m3, a.x.as<const uint8_t>() + r * a.x.stride(0), k, out);
  for (int64_t i = 0; i < k; ++i)
    out[i] *= x_scale(a.x_scales, r, i / kFp8Block);
}

template <ProductLoop kLoop, RunProducts kRun>
Status run_plain(Exec& ex, const Args& a) {
  FATHOM_ASSIGN(Products p, make_grouped_products(a.x, a.w, a.offsets, a.y));
  p.weight = &a.w;
  return kRun(ex, p, kLoop);
}

template <ProductLoop kLoop, RunProducts kRun>
Status run_quantised(Exec& ex, const Args& a) {
  FATHOM_ASSIGN(Products p, make_grouped_products(a.x, a.w, a.offsets, a.y));
  const DecodedRow row = bf16_row(p.k);
  p.x_type = ElementType::kBf16;
  p.k = align_up<int64_t>(p.k, 4);
  return run_grouped_decoded(
      ex, p, row, kLoop, [&](int64_t r, std::byte* out) { decode_bf16_row(a, row, r, out); }, kRun);
}

template <RunProducts kRun>
Status run_product(Exec& ex, const Args& a) {
  if (a.x.format != Format::kFp8Group) return run_plain<products_portable, kRun>(ex, a);
  FATHOM_ASSIGN(Products p, make_grouped_products(a.x, a.w, a.offsets, a.y));
  p.weight = &a.w;
  p.x_type = ElementType::kF32;
  return run_grouped_decoded(
      ex, p, f32_row(p.k), products_portable,
      [&](int64_t r, std::byte* out) { decode_f32_row(a, r, reinterpret_cast<float*>(out)); },
      kRun);
}

template <RunProducts kRun>
Status run_portable(Exec& ex, const Args& a) {
  return run_gated(ex, a, run_product<kRun>);
}

bool takes_rows16_quantised(const Args& a) {
  return a.x.format == Format::kFp8Group && a.w.layout == WeightLayout::kRows16;
}

bool takes_row_major_quantised(const Args& a) {
  return a.x.format == Format::kFp8Group && a.w.layout == WeightLayout::kRowMajor &&
         a.w.format() == Format::kFp8Block;
}

bool takes_rows16_plain(const Args& a) {
  return a.x.format != Format::kFp8Group && a.w.layout == WeightLayout::kRows16;
}

template <class K, RunProducts kRun>
constexpr VariantTable<K> variants() {
  constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;
  return {
      {"amx", Isa::kAmx, "", kTraits, run_plain<fp8_products_amx, kRun>, MathUnit::kBf16,
       ungated<Args, is_rows16_bf16<Args>>},
      {"avx512", Isa::kAvx512, "", kTraits, run_plain<fp8_products_avx512, kRun>, MathUnit::kBf16,
       ungated<Args, is_rows16_bf16<Args>>},
      {"avx512_quantised_x", Isa::kAvx512, "", kTraits,
       run_quantised<fp8_scaled_x_products_avx512, kRun>, MathUnit::kBf16,
       ungated<Args, takes_rows16_quantised>},
      {"avx512_row_major_quantised_x", Isa::kAvx512, "", kTraits,
       run_quantised<fp8_row_major_scaled_x_products_avx512, kRun>, MathUnit::kBf16,
       ungated<Args, takes_row_major_quantised>},
      {"avx512_row_major", Isa::kAvx512, "", kTraits,
       run_plain<fp8_row_major_products_avx512, kRun>, MathUnit::kBf16,
       ungated<Args, is_row_major_bf16<Args>>},
      {"avx2", Isa::kAvx2, "", kTraits, run_plain<fp8_products_avx2, kRun>, MathUnit::kF32,
       ungated<Args, takes_rows16_plain>},
      {"portable", Isa::kPortable, "", kTraits, run_portable<kRun>},
  };
}

}  // namespace

int64_t Fp8GroupGemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  int64_t decoded = 0;
  if (a.x.format == Format::kFp8Group) {
    const int64_t experts = a.w.values.dim(0);
    decoded = std::max(grouped_workspace(experts, rows, bf16_row(k)),
                       grouped_workspace(experts, rows, f32_row(k)));
  }
  return gated_workspace(a.gate, rows, a.w.rows()) + decoded +
         product_workspace(rows, align_up<int64_t>(k, 4), num_threads);
}

Status Fp8GroupGemm::check(const Args& a) {
  FATHOM_TRY(check_output_gate(a.gate, a.x, a.w, a.y));
  FATHOM_TRY(check_weight(a.w));
  if (a.x.format != Format::kFp8Group) {
    if (!a.x_scales.present()) return {};
    return invalid_argument(str_cat("x_scales is ", describe(a.x_scales), " but x is ",
                                    format_name(a.x.format), ", which has none"));
  }
  const View& s = a.x_scales;
  const int64_t blocks = ceil_div(a.x.dim(1), kFp8Block);
  if (s.format == Format::kF32 && s.rank == 2 && s.dim(0) == a.x.dim(0) && s.dim(1) == blocks)
    return {};
  return invalid_argument(str_cat("x_scales is ", describe(s), ", expected [", a.x.dim(0), ", ",
                                  blocks, "] f32 for x of fp8_group"));
}

int64_t Fp8GroupGemmSkewed::workspace(const Args& a, int num_threads) {
  return skewed_workspace(a.w.values.dim(0)) + Fp8GroupGemm::workspace(a, num_threads);
}

constinit const VariantTable<Fp8GroupGemm> fp8_group_gemm_cpu =
    variants<Fp8GroupGemm, run_products>();

constinit const VariantTable<Fp8GroupGemmSkewed> fp8_group_gemm_skewed_cpu =
    variants<Fp8GroupGemmSkewed, run_skewed_products>();

}  // namespace fathom
