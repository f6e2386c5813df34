// The largest magnitude of the elements that a thread holds, two at a time where they have sixteen
// bits.
#pragma once

#include <cstdint>

#include "fathom/kernels/cuda/elements.cuh"

namespace fathom::cuda {

/// What a NaN among the elements does to the result.
enum class Nan { kLeftOut, kKept };

/// The larger of two numbers. PTX ISA, max.
template <Nan kNan>
__device__ __forceinline__ float larger(float a, float b) {
  if constexpr (kNan == Nan::kLeftOut) return fmaxf(a, b);
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

/// Pair: the pairs of the hardware that hold the elements.
template <Nan kNan, class Pair, class T, int kCount>
__device__ __forceinline__ float largest_of_pairs(const Packed<T> (&packed)[kCount]) {
  Pair largest{};
#pragma unroll
  for (int i = 0; i < kCount * kVector / 2; ++i) {
    const uint32_t& word = packed[i / (kVector / 2)].words[i % (kVector / 2)];
    const Pair sizes = __habs2(reinterpret_cast<const Pair&>(word));
    if (i == 0) {
      largest = sizes;
    } else {
      largest = kNan == Nan::kKept ? __hmax2_nan(largest, sizes) : __hmax2(largest, sizes);
    }
  }
  const float low = larger<kNan>(0.0f, static_cast<float>(largest.x));
  return larger<kNan>(low, static_cast<float>(largest.y));
}

/// The largest magnitude of kCount times eight elements; 0 if all are NaN that are left out.
template <Nan kNan, int kCount>
__device__ __forceinline__ float largest_size(const Packed<Bf16> (&packed)[kCount]) {
  return largest_of_pairs<kNan, __nv_bfloat162>(packed);
}

template <Nan kNan, int kCount>
__device__ __forceinline__ float largest_size(const Packed<F16> (&packed)[kCount]) {
  return largest_of_pairs<kNan, __half2>(packed);
}

template <Nan kNan, int kCount>
__device__ __forceinline__ float largest_size(const Packed<float> (&packed)[kCount]) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount * kVector; ++i) {
    const float value = __uint_as_float(packed[i / kVector].words[i % kVector]);
    largest = larger<kNan>(largest, fabsf(value));
  }
  return largest;
}

}  // namespace fathom::cuda
