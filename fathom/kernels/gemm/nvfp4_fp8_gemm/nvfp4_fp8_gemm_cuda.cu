#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_as_e4m3.cuh"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_fp8_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Nvfp4Fp8Gemm::Args;

Status run_each(Exec& ex, const Args& a) {
  AnyProduct p = any_product_of(e4m3_product(a), Format::kNvfp4);
  p.w.as_e4m3 = true;
  return run_any(ex, p);
}

}  // namespace

constinit const VariantTable<Nvfp4Fp8Gemm> nvfp4_fp8_gemm_cuda{
    {"code_tiles", sm(90), "", kDeterministic | kGraphSafe, run_e4m3_tiles<Args>, MathUnit::kFp8,
     fills_e4m3_tiles<Args>, ordered_workspace<Args>},
    {"each", sm(90), "", kDeterministic | kBatchInvariant | kGraphSafe, run_each, MathUnit::kF32,
     has_rows},
};

}  // namespace fathom
