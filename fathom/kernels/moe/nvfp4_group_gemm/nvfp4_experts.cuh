// The grouped product with NVFP4 weights for kernels that are made of several: no contract checks.
#pragma once

#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

/// Runs a product with offsets, weights in rows and linear scales, by the fastest code that takes
/// its shapes: only `any_layout` takes weights that are not in pairs. y may be float32; `exact`
/// where that is the result and not on its way to a narrower one: no tiles, whose sums lose bits.
Status run_nvfp4_experts(Exec& ex, const ProductCall& c, bool exact = false);

}  // namespace fathom::cuda
