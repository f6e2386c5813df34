// Element types on the device: conversion by the instructions of the hardware, eight elements at a
// time, and element by element for layouts that do not allow that.
//
// The instructions round as fathom/formats/minifloat.h does (to nearest even, FP8 saturating); the
// number tests of the GPU hold the two together code by code. A NaN may have another payload.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "fathom/formats/format.h"
#include "fathom/formats/minifloat.h"

namespace fathom::cuda {

// ---- one element ----

__device__ __forceinline__ float load(const float* p) {
  return *p;
}

__device__ __forceinline__ float load(const Bf16* p) {
  return to_float(*p);
}

__device__ __forceinline__ float load(const F16* p) {
  return __half2float(__ushort_as_half(p->bits));
}

__device__ __forceinline__ float load(const E4m3* p) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(p->bits, __NV_E4M3)));
}

__device__ __forceinline__ float load(const E5m2* p) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(p->bits, __NV_E5M2)));
}

__device__ __forceinline__ void store(float* p, float value) {
  *p = value;
}

__device__ __forceinline__ void store(Bf16* p, float value) {
  p->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ __forceinline__ void store(F16* p, float value) {
  p->bits = __half_as_ushort(__float2half_rn(value));
}

__device__ __forceinline__ void store(E4m3* p, float value) {
  p->bits = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ void store(E5m2* p, float value) {
  p->bits = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2);
}

/// `value` rounded to T.
template <class T>
__device__ __forceinline__ float rounded(float value) {
  T element;
  store(&element, value);
  return load(&element);
}

template <>
__device__ __forceinline__ float rounded<float>(float value) {
  return value;
}

/// Element i of memory whose format is known at run time only: bf16, f16, f32, e4m3 or e5m2.
__device__ __forceinline__ float load_any(const void* p, Format format, int64_t i) {
  switch (format) {
    case Format::kBf16:
      return load(static_cast<const Bf16*>(p) + i);
    case Format::kF16:
      return load(static_cast<const F16*>(p) + i);
    case Format::kE4m3:
      return load(static_cast<const E4m3*>(p) + i);
    case Format::kE5m2:
      return load(static_cast<const E5m2*>(p) + i);
    default:
      return load(static_cast<const float*>(p) + i);
  }
}

__device__ __forceinline__ void store_any(void* p, Format format, int64_t i, float value) {
  switch (format) {
    case Format::kBf16:
      return store(static_cast<Bf16*>(p) + i, value);
    case Format::kF16:
      return store(static_cast<F16*>(p) + i, value);
    case Format::kE4m3:
      return store(static_cast<E4m3*>(p) + i, value);
    case Format::kE5m2:
      return store(static_cast<E5m2*>(p) + i, value);
    default:
      return store(static_cast<float*>(p) + i, value);
  }
}

// ---- eight elements, on an address that is a multiple of their bytes (of 16 for float) ----

/// The elements that one thread loads at once, everywhere.
inline constexpr int kVector = 8;

/// Eight elements as they lie in memory.
template <class T>
struct alignas(sizeof(T) * kVector > 16 ? 16 : sizeof(T) * kVector) Packed {
  uint32_t words[sizeof(T) * kVector / 4];
};

template <class T>
__device__ __forceinline__ Packed<T> load_packed(const T* p) {
  return *reinterpret_cast<const Packed<T>*>(p);
}

/// Stores that are left out unless `really`, by a predicate and not by a branch. PTX ISA, st.
__device__ __forceinline__ void st_global_if(void* p, uint32_t word, bool really) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.b32 [%0], %1;\n}\n" ::"l"(
                   __cvta_generic_to_global(p)),
               "r"(word), "r"(static_cast<int>(really))
               : "memory");
}

__device__ __forceinline__ void st_global_v2_if(void* p, uint32_t a, uint32_t b, bool really) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.global.v2.b32 [%0], {%1, %2};\n}\n" ::"l"(
          __cvta_generic_to_global(p)),
      "r"(a), "r"(b), "r"(static_cast<int>(really))
      : "memory");
}

__device__ __forceinline__ void st_global_v4_if(
    void* p, uint32_t a, uint32_t b, uint32_t c, uint32_t d, bool really) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(__cvta_generic_to_global(p)),
      "r"(a), "r"(b), "r"(c), "r"(d), "r"(static_cast<int>(really))
      : "memory");
}

/// To global memory, whole vectors: the compiler cuts some copies of a struct to words.
template <class T>
__device__ __forceinline__ void store_packed(T* p, const Packed<T>& packed) {
  const auto& w = packed.words;
  if constexpr (sizeof(packed) == 8) {
    *reinterpret_cast<uint2*>(p) = make_uint2(w[0], w[1]);
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(packed) / 4); i += 4)
      reinterpret_cast<uint4*>(p)[i / 4] = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
  }
}

__device__ __forceinline__ void unpack(const Packed<float>& packed, float (&out)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    out[i] = __uint_as_float(packed.words[i]);
}

__device__ __forceinline__ float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

__device__ __forceinline__ void unpack(const Packed<Bf16>& packed, float (&out)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    out[2 * i] = low_bf16(packed.words[i]);
    out[2 * i + 1] = high_bf16(packed.words[i]);
  }
}

__device__ __forceinline__ void unpack(const Packed<F16>& packed, float (&out)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const uint32_t word = packed.words[i];
    const float2 pair =
        __half22float2(__halves2half2(__ushort_as_half(static_cast<unsigned short>(word)),
                                      __ushort_as_half(static_cast<unsigned short>(word >> 16))));
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}

template <__nv_fp8_interpretation_t kKind>
__device__ __forceinline__ void unpack_fp8(const uint32_t (&words)[2], float (&out)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, kKind)));
    out[2 * i] = values.x;
    out[2 * i + 1] = values.y;
  }
}

__device__ __forceinline__ void unpack(const Packed<E4m3>& packed, float (&out)[kVector]) {
  unpack_fp8<__NV_E4M3>(packed.words, out);
}

__device__ __forceinline__ void unpack(const Packed<E5m2>& packed, float (&out)[kVector]) {
  unpack_fp8<__NV_E5M2>(packed.words, out);
}

__device__ __forceinline__ void pack(const float (&in)[kVector], Packed<float>& packed) {
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    packed.words[i] = __float_as_uint(in[i]);
}

__device__ __forceinline__ void pack(const float (&in)[kVector], Packed<Bf16>& packed) {
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
    packed.words[i] = uint32_t{__bfloat16_as_ushort(pair.y)} << 16 | __bfloat16_as_ushort(pair.x);
  }
}

__device__ __forceinline__ void pack(const float (&in)[kVector], Packed<F16>& packed) {
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const __half2 pair = __floats2half2_rn(in[2 * i], in[2 * i + 1]);
    packed.words[i] = uint32_t{__half_as_ushort(pair.y)} << 16 | __half_as_ushort(pair.x);
  }
}

template <__nv_fp8_interpretation_t kKind>
__device__ __forceinline__ void pack_fp8(const float (&in)[kVector], uint32_t (&words)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t low =
        __nv_cvt_float2_to_fp8x2({in[4 * i], in[4 * i + 1]}, __NV_SATFINITE, kKind);
    const uint32_t high =
        __nv_cvt_float2_to_fp8x2({in[4 * i + 2], in[4 * i + 3]}, __NV_SATFINITE, kKind);
    words[i] = low | high << 16;
  }
}

__device__ __forceinline__ void pack(const float (&in)[kVector], Packed<E4m3>& packed) {
  pack_fp8<__NV_E4M3>(in, packed.words);
}

__device__ __forceinline__ void pack(const float (&in)[kVector], Packed<E5m2>& packed) {
  pack_fp8<__NV_E5M2>(in, packed.words);
}

template <class T>
__device__ __forceinline__ void load8(const T* p, float (&out)[kVector]) {
  unpack(load_packed(p), out);
}

template <class T>
__device__ __forceinline__ void store8(T* p, const float (&in)[kVector]) {
  Packed<T> packed;
  pack(in, packed);
  store_packed(p, packed);
}

/// Four elements on an address that is a multiple of their bytes.
inline constexpr int kHalfVector = kVector / 2;

template <class T>
struct alignas(sizeof(T) * kHalfVector) PackedHalf {
  uint32_t words[sizeof(T)];
};

template <class T>
__device__ __forceinline__ void load4(const T* p, float (&out)[kHalfVector]) {
  const auto half = *reinterpret_cast<const PackedHalf<T>*>(p);
  Packed<T> whole{};
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)); ++i)
    whole.words[i] = half.words[i];
  float values[kVector];
  unpack(whole, values);
#pragma unroll
  for (int i = 0; i < kHalfVector; ++i)
    out[i] = values[i];
}

// ---- the last cache ----

/// How the last cache keeps what is read or written: the words that createpolicy makes of a
/// fraction of 1. PTX ISA, createpolicy; NVIDIA/cutlass (copy_sm90_tma.hpp).
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000;
inline constexpr uint64_t kEvictNormal = 0x1000000000000000;

/// That of weights. Those of a decode step are read once and are many times as large as the cache:
/// they make room first, so that the code of the next kernels, their activations and keys stay.
/// Those that other blocks read again are kept as everything is.
__device__ __forceinline__ uint64_t weights_policy(bool read_once) {
  return read_once ? kEvictFirst : kEvictNormal;
}

/// Sixteen bytes, past the first cache. A load of weights through the read-only path would be no
/// faster, and the assembler moves such loads behind wait_for_previous(). PTX ISA, ld.global.
__device__ __forceinline__ uint4 load_16(const void* p, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(__cvta_generic_to_global(p)), "l"(policy)
               : "memory");
  return v;
}

/// Sixteen bytes and eight, past the first cache; zeros unless `exists`, by a predicate and not by
/// a branch. PTX ISA, ld.global.
__device__ __forceinline__ uint4 load_16_if(const void* p, bool exists) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(exists))
      : "memory");
  return v;
}

__device__ __forceinline__ uint2 load_8_if(const void* p, bool exists) {
  uint2 v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
      "@p ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];\n}\n"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(exists))
      : "memory");
  return v;
}

/// Four bytes, or `otherwise`.
__device__ __forceinline__ uint32_t load_4_if(const void* p, bool exists, uint32_t otherwise = 0) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, %3;\n"
      "@p ld.global.L1::no_allocate.b32 %0, [%1];\n}\n"
      : "=&r"(v)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(exists)), "r"(otherwise)
      : "memory");
  return v;
}

/// PTX ISA, st.global.
__device__ __forceinline__ void store_16(void* p, uint4 v, uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(
                   __cvta_generic_to_global(p)),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy)
               : "memory");
}

/// sum + a b of eight bf16 each, in their order.
__device__ __forceinline__ float add_products(uint4 w, uint4 x, float sum) {
  const uint32_t ws[4] = {w.x, w.y, w.z, w.w};
  const uint32_t xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(low_bf16(ws[i]), low_bf16(xs[i]), sum);
    sum = fmaf(high_bf16(ws[i]), high_bf16(xs[i]), sum);
  }
  return sum;
}

// ---- eight elements, two at a time where they have sixteen bits ----

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
__device__ __forceinline__ typename PairOf<T>::Type hardware_pair(const uint32_t& word) {
  return reinterpret_cast<const typename PairOf<T>::Type&>(word);
}

/// a * b of eight elements, rounded once.
template <class T>
__device__ __forceinline__ Packed<T> packed_product(const Packed<T>& a, const Packed<T>& b) {
  Packed<T> out;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const auto pair = __hmul2_rn(hardware_pair<T>(a.words[i]), hardware_pair<T>(b.words[i]));
    out.words[i] = reinterpret_cast<const uint32_t&>(pair);
  }
  return out;
}

template <>
__device__ __forceinline__ Packed<float> packed_product(const Packed<float>& a,
                                                        const Packed<float>& b) {
  Packed<float> out;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    out.words[i] =
        __float_as_uint(__fmul_rn(__uint_as_float(a.words[i]), __uint_as_float(b.words[i])));
  return out;
}

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
  auto largest = __habs2(hardware_pair<T>(packed[0].words[0]));
#pragma unroll
  for (int i = 1; i < kCount * kVector / 2; ++i) {
    const auto sizes =
        __habs2(hardware_pair<T>(packed[i / (kVector / 2)].words[i % (kVector / 2)]));
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
