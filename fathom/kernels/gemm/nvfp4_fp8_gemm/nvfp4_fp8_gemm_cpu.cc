#include "fathom/kernels/cpu/products/run_products.h"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/e4m3_rows.h"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_fp8_gemm.h"

namespace fathom {
namespace {

using Args = Nvfp4Fp8Gemm::Args;

Status run_portable(Exec& ex, const Args& a) {
  Products p = make_products(a.x, a.w, a.y);
  p.weight = &a.w;
  p.decode_weight_row = decode_nvfp4_as_e4m3;
  p.x_type = ElementType::kF32;
  return run_decoded(ex, p, e4m3_x_row(p.k), products_portable,
                     [&](int64_t, int64_t t, std::byte* out) {
                       decode_scaled_e4m3(a.x, a.x_scales, t, reinterpret_cast<float*>(out));
                     });
}

}  // namespace

int64_t Nvfp4Fp8Gemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  return decoded_workspace(1, rows, e4m3_x_row(k)) + product_workspace(rows, k, num_threads);
}

Status Nvfp4Fp8Gemm::check(const Args& a) {
  return check_e4m3_operands(a.x, a.x_scales, a.w);
}

constinit const VariantTable<Nvfp4Fp8Gemm> nvfp4_fp8_gemm_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, run_portable, MathUnit::kF32,
     is_for_cpu<Args>},
};

}  // namespace fathom
