// Rows of codes as the tensor cores' kernel reads them: a unit of sixteen channels at a time, with
// the scale that they share, to bf16. A row is the channels of its codes, then 64 of `rope` in
// bf16.
//
//                  codes   of a unit   channels of a scale   D
//   Fp8F32Rows     512     16 bytes    128, f32              576    V3.2
//   Fp8Ue8m0Rows   448     16 bytes    64, ue8m0             512    V4
//   E2m1Rows       448     8 bytes     16, e4m3              512    V4, NVFP4
//
// code * scale is exact in bf16, but for float32 scales, whose product is rounded once.
#pragma once

#include <cuda_fp8.h>

#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::sparse_mla {

inline constexpr int kUnit = 16;       ///< channels that are decoded at a time, or half of them
inline constexpr int kRopeWidth = 64;  ///< channels behind those of codes

/// A unit as it lies in memory, the half of one in the first words, or eight channels of bf16,
/// which have no scale.
struct Unit {
  uint4 words;     ///< e2m1 takes two of them
  uint32_t scale;  ///< as it is stored, in the low bits
};

/// Four e4m3 codes as two pairs of bf16, which holds them all.
__device__ __forceinline__ uint2 widen_four(uint32_t codes) {
  uint2 pairs;
  cuda::Fp8Codec<__NV_E4M3, false>::decode_word(codes, pairs.x, pairs.y);
  return pairs;
}

/// The same times a scale of bf16, which stands in both halves of `scales`.
__device__ __forceinline__ uint2 widen_four(uint32_t codes, uint32_t scales) {
  const uint2 pairs = widen_four(codes);
  return {cuda::multiply_pairs(pairs.x, scales), cuda::multiply_pairs(pairs.y, scales)};
}

/// Two e4m3 codes in the low half of a word, times a float32 scale, rounded to bf16.
__device__ __forceinline__ uint32_t scaled_pair(uint32_t codes, float scale) {
  const auto pair = static_cast<__nv_fp8x2_storage_t>(codes);
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  return cuda::pack_bf16(values.x * scale, values.y * scale);
}

/// Four e2m1 codes in the low half of a word, times a scale of bf16 as above.
__device__ __forceinline__ uint2 scaled_e2m1(uint32_t codes, uint32_t scales) {
  const uint2 pairs = cuda::pairs_of_e2m1(codes);
  return {cuda::multiply_pairs(pairs.x, scales), cuda::multiply_pairs(pairs.y, scales)};
}

/// `Scale` as it is stored, for `kGroup` channels.
template <int kChannels, int kGroup, class Scale>
struct Fp8Rows {
  static constexpr int kCodes = kChannels;
  static constexpr int kBytes = kChannels;  ///< of codes
  static constexpr int kOfScale = kGroup;   ///< channels that share a scale
  static constexpr int kScaleBytes = sizeof(Scale);

  __device__ __forceinline__ static uint32_t scale(const unsigned char* scales, int i) {
    return reinterpret_cast<const Scale*>(scales)[i];
  }

  /// Codes of unit `unit`, or of half a unit where a half is counted as one.
  template <int kOf = kUnit>
  __device__ __forceinline__ static uint4 load_codes(const unsigned char* values,
                                                     int unit,
                                                     bool exists) {
    if constexpr (kOf == kUnit) {
      return cuda::load_16_if(values + kUnit * unit, exists);
    } else {
      const uint2 codes = cuda::load_8_if(values + kOf * unit, exists);
      return {codes.x, codes.y, 0, 0};
    }
  }

  __device__ __forceinline__ static Unit load(const unsigned char* values,
                                              const unsigned char* scales,
                                              int unit,
                                              bool exists) {
    return {load_codes(values, unit, exists), exists ? scale(scales, kUnit * unit / kGroup) : 0};
  }
};

struct Fp8F32Rows : Fp8Rows<512, 128, uint32_t> {
  /// To chunks of eight channels, as many as the unit has.
  template <int kChunks>
  __device__ __forceinline__ static void decode(const Unit& unit, uint4 (&out)[kChunks]) {
    const float scale = __uint_as_float(unit.scale);
    const uint32_t words[4] = {unit.words.x, unit.words.y, unit.words.z, unit.words.w};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint32_t a = words[2 * i];
      const uint32_t b = words[2 * i + 1];
      out[i] = {scaled_pair(a, scale), scaled_pair(a >> 16, scale), scaled_pair(b, scale),
                scaled_pair(b >> 16, scale)};
    }
  }
};

struct Fp8Ue8m0Rows : Fp8Rows<448, 64, unsigned char> {
  template <int kChunks>
  __device__ __forceinline__ static void decode(const Unit& unit, uint4 (&out)[kChunks]) {
    // 2^(byte - 127) as bf16: 0 is a subnormal number, 255 is NaN.
    const uint32_t byte = unit.scale;
    const uint32_t scale = byte == 0 ? 0x0040u : (byte == 255 ? 0x7FC0u : byte << 7);
    const uint32_t scales = scale * 0x10001u;
    const uint32_t words[4] = {unit.words.x, unit.words.y, unit.words.z, unit.words.w};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint2 a = widen_four(words[2 * i], scales);
      const uint2 b = widen_four(words[2 * i + 1], scales);
      out[i] = {a.x, a.y, b.x, b.y};
    }
  }
};

struct E2m1Rows {
  static constexpr int kCodes = 448;
  static constexpr int kBytes = 224;
  static constexpr int kOfScale = kUnit;
  static constexpr int kScaleBytes = 1;

  /// As Fp8Rows has it.
  template <int kOf = kUnit>
  __device__ __forceinline__ static Unit load(const unsigned char* values,
                                              const unsigned char* scales,
                                              int unit,
                                              bool exists) {
    const uint32_t scale = exists ? scales[kOf * unit / kOfScale] : 0;
    if constexpr (kOf == kUnit) {
      const uint2 codes = cuda::load_8_if(values + kUnit / 2 * unit, exists);
      return {{codes.x, codes.y, 0, 0}, scale};
    } else {
      return {{cuda::load_4_if(values + kOf / 2 * unit, exists), 0, 0, 0}, scale};
    }
  }

  template <int kChunks>
  __device__ __forceinline__ static void decode(const Unit& unit, uint4 (&out)[kChunks]) {
    const uint32_t scales = widen_four(unit.scale).x & 0xFFFFu;
    const uint32_t twice = scales * 0x10001u;
    const uint32_t words[2] = {unit.words.x, unit.words.y};
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint2 a = scaled_e2m1(words[i], twice);
      const uint2 b = scaled_e2m1(words[i] >> 16, twice);
      out[i] = {a.x, a.y, b.x, b.y};
    }
  }
};

/// Rows without codes: all D channels in bf16.
template <int kWidth>
struct Bf16Rows {
  static constexpr int kCodes = 0;
  static constexpr int kBytes = 0;
  static constexpr int kD = kWidth;
};

/// Channels of a row.
template <class Rows>
inline constexpr int kWidthOf = Rows::kCodes + kRopeWidth;

template <int kWidth>
inline constexpr int kWidthOf<Bf16Rows<kWidth>> = kWidth;

}  // namespace fathom::sparse_mla
