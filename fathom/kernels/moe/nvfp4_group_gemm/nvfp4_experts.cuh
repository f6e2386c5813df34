// The grouped product with NVFP4 weights for kernels that are made of several: no contract checks.
#pragma once

#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

/// Runs a product with offsets, weights in rows and linear scales, by the fastest code that takes
/// its shapes; weights that are not in pairs are for `any_layout` alone. y may be float32. `exact`:
/// y is the result itself, not on its way to a narrower format; then tiles are out, as their sums
/// lose bits.
Status run_nvfp4_experts(Exec& ex, const ProductCall& c, bool exact = false);

}  // namespace fathom::cuda
