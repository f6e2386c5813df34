// The grouped product with NVFP4 weights for kernels that are made of several: no contract checks.
#pragma once

#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

/// Runs a product with offsets, row-major weights and linear scales, by the fastest code that takes
/// its shapes. y may be float32.
Status run_nvfp4_experts(Exec& ex, const ProductCall& c);

}  // namespace fathom::cuda
