#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/decode_once.cuh"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_as_e4m3.cuh"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_fp8_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Nvfp4Fp8Gemm::Args;

}  // namespace

constinit const VariantTable<Nvfp4Fp8Gemm> nvfp4_fp8_gemm_cuda{
    // From the third tile of 128 rows of x on: counted, in GEMM_CUDA_NOTES.md.
    {"decoded_first", sm(90), "T>=257", kDeterministic | kGraphSafe, run_decoded_tiles<Args>,
     MathUnit::kFp8, fills_decoded_tiles<Args>, decoded_weights_workspace<Args>},
    {"fp8_tiles", sm(90), "", kDeterministic | kGraphSafe, run_e4m3_tiles<Args>, MathUnit::kFp8,
     fills_e4m3_tiles<Args>, ordered_workspace<Args>},
    {"any_layout", sm(90), "", kDeterministic | kBatchInvariant | kGraphSafe,
     run_e4m3_any_layout<Args>, MathUnit::kF32, has_rows},
};

}  // namespace fathom
