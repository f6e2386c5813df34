// The grouped product with FP8 block weights for kernels that are made of several: no contract
// checks.
#pragma once

#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

/// Runs a product with offsets, x and w on sixteen bytes and K a multiple of 16 up to 32768, by the
/// variant that Fp8GroupGemm chooses for as many rows. x is bf16, or E4M3 with x_scales; then y has
/// elements of two bytes.
Status run_fp8_experts(Exec& ex, const ProductCall& c);

}  // namespace fathom::cuda
