// Grouped products of FP8 block weights whose outputs are gated: the same kernels with another end.
#pragma once

#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

/// Each for calls that the variant of that name takes (fp8_group_gemm_cuda.cu).
Status run_gated_fp8_weight_tiles(Exec& ex, const ProductCall& c);
Status run_gated_fp8_split_k(Exec& ex, const ProductCall& c);
Status run_gated_fp8_persistent(Exec& ex, const ProductCall& c);

}  // namespace fathom::cuda
