// SwiGLU's elementwise part on the GPU; what it is, SiluMul says (kernels/act/gated_act).
#pragma once

namespace fathom::cuda {

/// min(z, limit); NaN stays NaN.
__device__ __forceinline__ float at_most(float z, float limit) {
  return z > limit ? limit : z;
}

/// min(z, limit), from below at -limit as well.
__device__ __forceinline__ float within(float z, float limit) {
  return -at_most(-at_most(z, limit), limit);
}

/// silu(gate) * up of sums in float32 for a result of 16 bits: e^x and the quotient by the
/// approximations of the hardware, a few steps of float32 off; of gates below -87 it is 0. The
/// limit is infinite where there is none.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  gate = at_most(gate, limit);
  return __fdividef(gate, 1.0f + __expf(-gate)) * within(up, limit);
}

}  // namespace fathom::cuda
