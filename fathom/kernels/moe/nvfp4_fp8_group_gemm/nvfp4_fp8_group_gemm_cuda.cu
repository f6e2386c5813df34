#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_as_e4m3.cuh"
#include "fathom/kernels/moe/nvfp4_fp8_group_gemm/nvfp4_fp8_group_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Nvfp4Fp8GroupGemm::Args;

static_assert(kMostExperts<TileNvfp4AsE4m3> >= 1024, "as the table says");

constexpr uint32_t kTraits = kDeterministic | kGraphSafe;

}  // namespace

constinit const VariantTable<Nvfp4Fp8GroupGemm> nvfp4_fp8_group_gemm_cuda{
    {"fp8_tiles", sm(90), "E<=1024", kTraits, run_e4m3_tiles<Args>, MathUnit::kFp8,
     fills_e4m3_tiles<Args>, ordered_workspace<Args>},
    {"any_layout", sm(90), "", kTraits | kBatchInvariant, run_e4m3_any_layout<Args>, MathUnit::kF32,
     has_rows},
};

}  // namespace fathom
