// The grouped product with bf16 weights for kernels that are made of several: no contract checks.
#pragma once

#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

/// Runs a product with offsets, x in bf16 on sixteen bytes, as do weights, and K a multiple of 8 up
/// to 16384, by the variant that Bf16GroupGemm chooses for as many rows.
Status run_bf16_experts(Exec& ex, const ProductCall& c);

}  // namespace fathom::cuda
