#include <algorithm>

#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/cpu/products/decoded_rows.h"
#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"

namespace fathom {
namespace {

// ---- fp8_block_gemm with quantised x ----

DecodedRow bf16_row(int64_t k) {
  return DecodedRow::of(2, k, ceil_div(k, kFp8Block));
}

DecodedRow f32_row(int64_t k) {
  return DecodedRow::of(4, k, 0);
}

/// A value of the row-major or column-major scales.
float x_scale(const View& scales, int64_t t, int64_t block) {
  return scales.as<const float>()[t * scales.stride(0) + block * scales.stride(1)];
}

void decode_f32_row(const Fp8BlockGemm::Args& a, int64_t t, float* out) {
  const int64_t k = a.x.dim(1);
  decode_to_f32(Format::kE4m3, a.x.as<const uint8_t>() + t * a.x.stride(0), k, out);
  for (int64_t i = 0; i < k; ++i)
    out[i] *= x_scale(a.x_scales, t, i / kFp8Block);
}

void decode_bf16_row(const Fp8BlockGemm::Args& a,
                     const DecodedRow& row,
                     int64_t t,
                     std::byte* out) {
  const int64_t k = a.x.dim(1);
  decode_to_bf16(Format::kE4m3, a.x.as<const uint8_t>() + t * a.x.stride(0), k, row.scales_at, out);
  auto* scales = reinterpret_cast<float*>(out + row.scales_at * row.element_bytes);
  for (int64_t b = 0; b < ceil_div(k, kFp8Block); ++b)
    scales[b] = x_scale(a.x_scales, t, b);
}

bool takes_rows16_quantised(const Fp8BlockGemm::Args& a) {
  return a.x.format == Format::kFp8Group && a.w.layout == WeightLayout::kRows16;
}

bool takes_row_major_quantised(const Fp8BlockGemm::Args& a) {
  return a.x.format == Format::kFp8Group && a.w.layout == WeightLayout::kRowMajor &&
         a.w.format() == Format::kFp8Block;
}

// ---- fp8_gemm ----

template <ProductLoop kLoop, ElementType kType>
Status run_fp8_gemm(Exec& ex, const Fp8Gemm::Args& a) {
  // What the portable loop decodes: codes without scales, which the result gets.
  QuantView codes = a.w;
  codes.values.format = Format::kE4m3;
  codes.scales = {};
  Products p = make_products(a.x, codes, a.y);
  p.weight = &codes;
  void* const whole = ex.workspace;
  WorkspaceCut cut(whole);
  const ResultScaling scaling{
      .row_scale = a.x_scales.as<const float>(),
      .col_scale = column_array(a.w.scales, p.n, cut.take<float>(padded_columns(p.n))),
      .bias = column_array(a.bias, p.n, cut.take<float>(padded_columns(p.n)))};
  p.scaling = &scaling;
  ex.workspace = static_cast<std::byte*>(whole) + cut.bytes();
  Status status = run_fp8_codes(ex, p, Format::kE4m3, kLoop, kType);
  ex.workspace = whole;
  return status;
}

}  // namespace

int64_t Fp8BlockGemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  int64_t decoded = 0;
  if (a.x.format == Format::kFp8Group) {
    decoded =
        std::max(decoded_workspace(1, rows, bf16_row(k)), decoded_workspace(1, rows, f32_row(k)));
  }
  return decoded + product_workspace(rows, align_up<int64_t>(k, 4), num_threads);
}

Status Fp8BlockGemm::check(const Args& a) {
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

Status run_quantised_x(Exec& ex, const Fp8BlockGemm::Args& a, ProductLoop loop, ElementType type) {
  Products p = make_products(a.x, a.w, a.y);
  p.weight = &a.w;
  p.x_type = type;
  if (type == ElementType::kF32) {
    return run_decoded(ex, p, f32_row(p.k), loop, [&](int64_t, int64_t t, std::byte* out) {
      decode_f32_row(a, t, reinterpret_cast<float*>(out));
    });
  }
  const DecodedRow row = bf16_row(p.k);
  p.k = align_up<int64_t>(p.k, 4);
  return run_decoded(ex, p, row, loop,
                     [&](int64_t, int64_t t, std::byte* out) { decode_bf16_row(a, row, t, out); });
}

int64_t Fp8BlockBmm::workspace(const Args& a, int num_threads) {
  return product_workspace(a.x.dim(0), align_up<int64_t>(a.w.cols(), 4), num_threads);
}

int64_t Fp8Gemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  WorkspaceCut cut(nullptr);
  cut.take<float>(padded_columns(a.w.rows()));
  cut.take<float>(padded_columns(a.w.rows()));
  return cut.bytes() + fp8_codes_workspace(1, rows, k) +
         product_workspace(rows, align_up<int64_t>(k, 4), num_threads);
}

Status Fp8Gemm::check(const Args& a) {
  return check_weight(a.w);
}

namespace {

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;
using BlockArgs = Fp8BlockGemm::Args;

}  // namespace

constinit const VariantTable<Fp8BlockGemm> fp8_block_gemm_cpu = with_rows<Fp8BlockGemm>(
    {
        {"avx512_quantised_x", Isa::kAvx512, "", kTraits,
         run_quantised_x_as_bf16<BlockArgs, fp8_scaled_x_products_avx512>, MathUnit::kBf16,
         takes_rows16_quantised},
        {"avx512_row_major_quantised_x", Isa::kAvx512, "", kTraits,
         run_quantised_x_as_bf16<BlockArgs, fp8_row_major_scaled_x_products_avx512>,
         MathUnit::kBf16, takes_row_major_quantised},
        {"avx512_row_major", Isa::kAvx512, "", kTraits,
         run_product_kernel<BlockArgs, fp8_row_major_products_avx512>, MathUnit::kBf16,
         is_row_major_bf16<BlockArgs>},
    },
    product_variants<Fp8BlockGemm, fp8_products_amx, fp8_products_avx512, fp8_products_avx2>());

constinit const VariantTable<Fp8BlockBmm> fp8_block_bmm_cpu = with_rows<Fp8BlockBmm>(
    {{"avx512_row_major", Isa::kAvx512, "", kTraits,
      run_product_kernel<Fp8BlockBmm::Args, fp8_row_major_products_avx512>, MathUnit::kBf16,
      is_row_major_bf16<Fp8BlockBmm::Args>}},
    product_variants<Fp8BlockBmm, fp8_products_amx, fp8_products_avx512, fp8_products_avx2>());

constinit const VariantTable<Fp8Gemm> fp8_gemm_cpu{
    {"avx512", Isa::kAvx512, "", kTraits,
     run_fp8_gemm<e4m3_row_major_products_avx512, ElementType::kBf16>, MathUnit::kBf16},
    {"portable", Isa::kPortable, "", kTraits, run_fp8_gemm<products_portable, ElementType::kF32>},
};

}  // namespace fathom
