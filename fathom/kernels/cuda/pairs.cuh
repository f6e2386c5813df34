// Elements of sixteen bits two at a time: largest magnitudes and products of what a thread holds.
// The same for float, one at a time.
#pragma once

#include <cstdint>

#include "fathom/kernels/cuda/elements.cuh"

namespace fathom::cuda {

/// The pairs of the hardware that hold elements of sixteen bits.
template <class T>
struct PairOf;

template <>
struct PairOf<Bf16> {
  using Type = __nv_bfloat162;
};

template <>
struct PairOf<F16> {
  using Type = __half2;
};

template <class T>
__device__ __forceinline__ typename PairOf<T>::Type pair_of(const uint32_t& word) {
  return reinterpret_cast<const typename PairOf<T>::Type&>(word);
}

// ---- products ----

/// a * b of eight elements, rounded once.
template <class T>
__device__ __forceinline__ Packed<T> product(const Packed<T>& a, const Packed<T>& b) {
  Packed<T> out;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const auto pair = __hmul2_rn(pair_of<T>(a.words[i]), pair_of<T>(b.words[i]));
    out.words[i] = reinterpret_cast<const uint32_t&>(pair);
  }
  return out;
}

template <>
__device__ __forceinline__ Packed<float> product(const Packed<float>& a, const Packed<float>& b) {
  Packed<float> out;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    out.words[i] =
        __float_as_uint(__fmul_rn(__uint_as_float(a.words[i]), __uint_as_float(b.words[i])));
  return out;
}

// ---- largest magnitudes ----

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

/// The largest magnitude of kCount times eight elements; 0 if all are NaN that are left out.
template <Nan kNan, class T, int kCount>
__device__ __forceinline__ float largest_size(const Packed<T> (&packed)[kCount]) {
  auto largest = __habs2(pair_of<T>(packed[0].words[0]));
#pragma unroll
  for (int i = 1; i < kCount * kVector / 2; ++i) {
    const auto sizes = __habs2(pair_of<T>(packed[i / (kVector / 2)].words[i % (kVector / 2)]));
    largest = kNan == Nan::kKept ? __hmax2_nan(largest, sizes) : __hmax2(largest, sizes);
  }
  const float low = larger<kNan>(0.0f, static_cast<float>(largest.x));
  return larger<kNan>(low, static_cast<float>(largest.y));
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
