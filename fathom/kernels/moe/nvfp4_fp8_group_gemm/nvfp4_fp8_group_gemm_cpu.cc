#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/e4m3_rows.h"
#include "fathom/kernels/moe/grouped_rows.h"
#include "fathom/kernels/moe/nvfp4_fp8_group_gemm/nvfp4_fp8_group_gemm.h"

namespace fathom {
namespace {

using Args = Nvfp4Fp8GroupGemm::Args;

Status run_product(Exec& ex, const Args& a) {
  FATHOM_ASSIGN(Products p, make_grouped_products(a.x, a.w, a.offsets, a.y));
  p.weight = &a.w;
  p.decode_weight_row = decode_nvfp4_as_e4m3;
  p.x_type = ElementType::kF32;
  return run_grouped_decoded(
      ex, p, e4m3_x_row(p.k), products_portable, [&](int64_t r, std::byte* out) {
        decode_scaled_e4m3(a.x, a.x_scales, r, reinterpret_cast<float*>(out));
      });
}

Status run_portable(Exec& ex, const Args& a) {
  return run_gated(ex, a, run_product);
}

}  // namespace

int64_t Nvfp4Fp8GroupGemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  return gated_workspace(a.gate, rows, a.w.rows()) +
         grouped_workspace(a.w.values.dim(0), rows, e4m3_x_row(k)) +
         product_workspace(rows, k, num_threads);
}

Status Nvfp4Fp8GroupGemm::check(const Args& a) {
  FATHOM_TRY(check_output_gate(a.gate, a.x, a.w, a.y));
  return check_e4m3_operands(a.x, a.x_scales, a.w);
}

constinit const VariantTable<Nvfp4Fp8GroupGemm> nvfp4_fp8_group_gemm_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, run_portable, MathUnit::kF32,
     is_for_cpu<Args>},
};

}  // namespace fathom
