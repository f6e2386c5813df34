// The butterflies of a row that neighbouring lanes of a warp hold, eight elements each: element
// 8 * lane + i of the row is x[i]. Strides 1, 2, 4, .. in this order, as hadamard.h says.
#pragma once

#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/elements.cuh"

namespace fathom::cuda {

/// All stages of rows of 8 * lanes elements, a power of two, up to 32 lanes; a row begins at a lane
/// that is a multiple of `lanes`. By whole warps. The upper half of a pair becomes a - b as its
/// partner's value plus -1 times its own, which rounds once, as the subtraction does.
__device__ __forceinline__ void transform_lanes(float (&x)[kVector], int lanes) {
#pragma unroll
  for (int stride = 1; stride < kVector; stride *= 2) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i];
      const float b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
#pragma unroll 1
  for (int stride = 1; stride < lanes; stride *= 2) {
    const float sign = (lane_id() & stride) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      x[i] = fmaf(x[i], sign, __shfl_xor_sync(0xFFFFFFFFu, x[i], stride));
  }
}

}  // namespace fathom::cuda
