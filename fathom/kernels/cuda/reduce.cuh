// Sums and maxima over warps and blocks, in an order that depends on nothing but the number of
// threads, so that results are the same for any grid.
#pragma once

#include "fathom/kernels/cuda/device_code.cuh"

namespace fathom::cuda {

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// NaN gives way to numbers.
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// The combination of the values of `kLanes` neighbouring lanes (a power of two), in all of them.
template <int kLanes = 32, class Combine>
__device__ __forceinline__ float combine_lanes(float value, Combine combine) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, offset));
  return value;
}

/// The sum of the values of this lane and those below it, of kLanes neighbouring lanes (a power of
/// two). The instruction says itself whether there is a lane to read from. PTX ISA, shfl.sync.
template <int kLanes = 32>
__device__ __forceinline__ int sum_up_to_lane(int value) {
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b32 lower;\n"
        "shfl.sync.up.b32 lower|p, %0, %1, %2, 0xFFFFFFFF;\n@p add.s32 %0, %0, lower;\n}\n"
        : "+r"(value)
        : "r"(offset), "n"((32 - kLanes) << 8));
  }
  return value;
}

/// The combination of the values of all threads of the block, in all of them. `scratch` holds 32
/// floats of shared memory that nothing else uses until the next barrier after the call. Every warp
/// folds the warps' results for itself, so there is one barrier.
template <class Combine>
__device__ __forceinline__ float combine_block(float value, float* scratch, Combine combine) {
  value = combine_lanes(value, combine);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return value;
  if (lane_id() == 0) scratch[warp_id()] = value;
  __syncthreads();
  float total = scratch[0];
  for (int w = 1; w < warps; ++w)
    total = combine(total, scratch[w]);
  return total;
}

}  // namespace fathom::cuda
