// Powers of two as scales of a group, as DeepSeek-V4 has them, on the device.
#pragma once

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/cuda/elements.cuh"

namespace fathom::cuda {

/// A scale 2^(byte - 127), and its inverse, which is exact: a product with it has the bits of a
/// division by the scale.
struct PowerOfTwo {
  Ue8m0 byte;

  /// Of E4M3 codes, 2^ceil(log2(max(amax, 1e-4) / 448)): fp8_scale of kFp8V32DemoUe8m0.
  __device__ static PowerOfTwo of_e4m3(float amax) {
    return {ue8m0_round_up(fmaxf(amax, 1e-4f) * (1.0f / kE4m3Max))};
  }

  /// Of E2M1 codes, 2^ceil(log2(amax / 6)), 2^-126 at least: mxfp4_scale of Mxfp4Rule::kCeil.
  __device__ static PowerOfTwo of_e2m1(float amax) {
    return {ue8m0_round_up(__fdiv_rn(amax, kE2m1Max))};
  }

  __device__ float value() const { return to_float(byte); }

  __device__ float inverse() const {
    return to_float(Ue8m0{static_cast<uint8_t>(254 - byte.bits)});
  }

  __device__ void store(Ue8m0* s) const { *s = byte; }

  __device__ void store(float* s) const { *s = value(); }
};

}  // namespace fathom::cuda
