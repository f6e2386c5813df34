// Weights as a warp streams them: sixteen bytes of a row at a time, turned into operands of the
// tensor cores in registers. Exact: bf16 holds every E4M3 and E5M2 code, and
// every product of an E2M1 code and an E4M3 scale.
//
// A row is cut into blocks of 128 k. Lane t = 0 .. 3 of a quad holds sixteen bytes of each of a
// block's loads: of load l the k
//
//   l * 32 * kGroups + t * 8 * kGroups + i * 8 + 0 .. 7,    i = 0 .. kGroups - 1
//
// in groups of eight (or, where kTransposed, other eight of the same 32). A group is four pairs of
// bf16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "fathom/formats/layout/pair_layout.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/products/mma.cuh"
#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

/// Four E4M3 codes as two pairs of f16, exactly; NaN stays NaN.
__device__ __forceinline__ void f16_of_e4m3(uint32_t word, uint32_t& low, uint32_t& high) {
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(low), "=r"(high)
      : "r"(word));
}

__device__ __forceinline__ uint32_t pair_of_floats(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return uint32_t{__bfloat16_as_ushort(pair.y)} << 16 | __bfloat16_as_ushort(pair.x);
}

/// Whose groups are eight k that follow each other.
struct NaturalPairs {
  static constexpr bool kTransposed = false;
};

/// What scales a row of a block has.
enum class ScaleKind { kNone, kOneABlock, kOneASixteen };

struct Bf16Codec : NaturalPairs {
  static constexpr int kGroups = 1;
  static constexpr int kLoads = 4;
  static constexpr int kAhead = 4;  ///< blocks on their way: 16 KB each for 64 rows
  static constexpr int kLoadK = 8;  ///< k in sixteen bytes
  static constexpr ScaleKind kScale = ScaleKind::kNone;
  static constexpr float kFactor = 1.0f;

  template <int i>
  __device__ static void decode(const uint4& words, uint32_t, uint32_t (&pairs)[4]) {
    pairs[0] = words.x;
    pairs[1] = words.y;
    pairs[2] = words.z;
    pairs[3] = words.w;
  }
};

/// Codes of eight bits. With kScaled, a scale for 128 x 128 of them.
template <__nv_fp8_interpretation_t kKind, bool kScaled>
struct Fp8Codec : NaturalPairs {
  static constexpr int kGroups = 2;
  static constexpr int kLoads = 2;
  static constexpr int kAhead = 4;
  static constexpr int kLoadK = 16;
  static constexpr ScaleKind kScale = kScaled ? ScaleKind::kOneABlock : ScaleKind::kNone;
  static constexpr float kFactor = 1.0f;

  __device__ static void decode_word(uint32_t word, uint32_t& low, uint32_t& high) {
    const float2 a = __half22float2(
        __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word), kKind)));
    const float2 b = __half22float2(
        __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word >> 16), kKind)));
    low = pair_of_floats(a.x, a.y);
    high = pair_of_floats(b.x, b.y);
  }

  template <int i>
  __device__ static void decode(const uint4& words, uint32_t, uint32_t (&pairs)[4]) {
    decode_word(i == 0 ? words.x : words.z, pairs[0], pairs[1]);
    decode_word(i == 0 ? words.y : words.w, pairs[2], pairs[3]);
  }
};

/// The four pairs of a word in layout kPairs (formats/layout/pair_layout.h), times 2^-126. Shifts
/// to the left are products, for the pipe that has less to do.
__device__ __forceinline__ void decode_e2m1(uint32_t word, uint32_t (&pairs)[4]) {
  const uint32_t rotated = __funnelshift_l(word, word, kPairRotation);
  pairs[0] = word & kPairMask;
  pairs[1] = (word * 8) & kPairMask;
  pairs[2] = rotated & kPairMask;
  pairs[3] = ((rotated & kLastPairMask) * kLastPairFactor) & kPairMask;
}

/// Four E2M1 codes in the low half of a word, the first in the lowest nibble, as two pairs of bf16.
__device__ __forceinline__ uint2 pairs_of_e2m1(uint32_t codes) {
  // The upper and the lower bytes of 0, .5, 1, 1.5 and 2, 3, 4, 6, of which a nibble without its
  // sign picks one.
  const uint32_t sizes = codes & 0x7777u;
  const uint32_t upper = __byte_perm(0x3F3F3F00u, 0x40404040u, sizes);
  const uint32_t lower = __byte_perm(0xC0800000u, 0xC0804000u, sizes);
  // The sign of a nibble is the highest bit of a byte in one of these two words.
  const uint32_t signs = __byte_perm(codes << 4, codes, 0x5140u) & 0x80808080u;
  return {__byte_perm(lower, upper | signs, 0x5140u), __byte_perm(lower, upper | signs, 0x7362u)};
}

/// The lower or the upper half of `pair` as both: in such a form that `mul.bf16x2` takes the half
/// from where it is (a `prmt` would be an instruction of its own).
template <int kUpper>
__device__ __forceinline__ uint32_t half_twice(uint32_t pair) {
  uint32_t twice;
  if constexpr (kUpper == 0)
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l}; }" : "=r"(twice) : "r"(pair));
  else
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h}; }" : "=r"(twice) : "r"(pair));
  return twice;
}

/// Two E4M3 scales, not negative, as bf16 times 2^119; the largest is 1.75 * 2^127.
__device__ __forceinline__ uint32_t lifted_scales(uint32_t two_bytes) {
  constexpr uint32_t kTwoTo120 = 0x7B807B80u;
  constexpr uint32_t kTwoTo119 = 0x7B007B00u;
  const uint32_t placed = __byte_perm(two_bytes, 0, 0x4140) << 4;  // times 2^-120
  return multiply_pairs(multiply_pairs(placed, kTwoTo120), kTwoTo119);
}

/// Codes in layout kPairs: group i of a lane's 32 k has the pairs (2i, 2i+1) of each eight k.
struct Nvfp4Codec {
  static constexpr bool kTransposed = true;
  static constexpr int kGroups = 4;
  static constexpr int kLoads = 1;
  static constexpr int kAhead = 4;
  static constexpr int kLoadK = 32;
  static constexpr ScaleKind kScale = ScaleKind::kOneASixteen;
  static constexpr float kFactor = 128.0f;  // 2^126 / 2^119

  /// `scales` are those of a lane's 32 k, lifted.
  template <int i>
  __device__ static void decode(const uint4& words, uint32_t scales, uint32_t (&pairs)[4]) {
    const uint32_t word = i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
    const uint32_t low = half_twice<0>(scales);
    const uint32_t high = half_twice<1>(scales);
    decode_e2m1(word, pairs);
    pairs[0] = multiply_pairs(pairs[0], low);
    pairs[1] = multiply_pairs(pairs[1], low);
    pairs[2] = multiply_pairs(pairs[2], high);
    pairs[3] = multiply_pairs(pairs[3], high);
  }
};

/// Decodes the first or the second four of each eight k of rows g and g + 8: two groups of the
/// codec at a time, so that what a product takes of x are two neighbouring registers of a load.
/// Four from four loads would be copied before the first product, which then had to wait for all of
/// x. Calls product(j, w) for eight k j with the operand w of mma_16x8x16.
template <int kHalf, class Product>
__device__ __forceinline__ void decode_half(const uint4& row_g,
                                            const uint4& row_g8,
                                            uint32_t scales_g,
                                            uint32_t scales_g8,
                                            Product product) {
  constexpr int kFirst = 2 * kHalf;
  static_assert(Nvfp4Codec::kGroups == 4);
  uint32_t a[2][4];
  uint32_t b[2][4];
  Nvfp4Codec::decode<kFirst>(row_g, scales_g, a[0]);
  Nvfp4Codec::decode<kFirst>(row_g8, scales_g8, b[0]);
  Nvfp4Codec::decode<kFirst + 1>(row_g, scales_g, a[1]);
  Nvfp4Codec::decode<kFirst + 1>(row_g8, scales_g8, b[1]);
#pragma unroll
  for (int j = 0; j < 4; ++j)
    product(j, make_uint4(a[0][j], b[0][j], a[1][j], b[1][j]));
}

/// Adds the products of such an operand and the same four of eight k of x.
template <int kHalf>
__device__ __forceinline__ void multiply_half(float (&sums)[4], const uint4& w, const uint4& x) {
  mma_16x8x16(sums, w.x, w.y, w.z, w.w, kHalf == 0 ? x.x : x.z, kHalf == 0 ? x.y : x.w);
}

}  // namespace fathom::cuda
