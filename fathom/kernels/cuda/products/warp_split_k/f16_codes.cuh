// E4M3 weights and x of few rows in f16: codes become f16 by one instruction for two of them, where
// bf16 would take four.
#pragma once

#include "fathom/kernels/cuda/codecs.cuh"

namespace fathom::cuda {

/// Eight k of rows g and g + 8 of E4M3, in f16 as mma_16x8x16_f16 takes them.
struct E4m3Eight {
  uint32_t g[4];
  uint32_t g8[4];

  __device__ __forceinline__ E4m3Eight(uint32_t low_g,
                                       uint32_t high_g,
                                       uint32_t low_g8,
                                       uint32_t high_g8) {
    f16_of_e4m3(low_g, g[0], g[1]);
    f16_of_e4m3(high_g, g[2], g[3]);
    f16_of_e4m3(low_g8, g8[0], g8[1]);
    f16_of_e4m3(high_g8, g8[2], g8[3]);
  }

  /// Adds the products with eight k of x, four of them in each chain.
  __device__ __forceinline__ void multiply(const uint4& x,
                                           float (&even)[4],
                                           float (&odd)[4]) const {
    mma_16x8x16_f16(even, g[0], g8[0], g[1], g8[1], x.x, x.y);
    mma_16x8x16_f16(odd, g[2], g8[2], g[3], g8[3], x.z, x.w);
  }
};

/// Turns 128 k of eight rows of x from bf16 to f16, of which lane 4 g + t has 32 of row g: times
/// the power of two that brings the largest of the row below 2^15. What is up to 2^31 times smaller
/// than it stays exact, and what is smaller still is rounded to 2^-40 of it. NaN and infinities
/// stay.
class BlockInF16 {
 public:
  __device__ __forceinline__ explicit BlockInF16(uint4 (&eights)[4]) {
    // Of bf16 numbers without sign, the larger one has the larger bits.
    uint32_t largest = 0;
#pragma unroll
    for (const uint4& v : eights) {
#pragma unroll
      for (const uint32_t word : {v.x, v.y, v.z, v.w})
        largest = __vmaxu2(largest, word & 0x7FFF7FFFu);
    }
    largest = max(largest >> 16, largest & 0xFFFFu);
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    // Exponents, such that both powers of two are normal numbers.
    exponent_ = min(max(largest >> 7, 15u), 254u);
    const uint32_t factor = (268u - exponent_) << 7;  // bf16: 2^(14 - (exponent - 127))
    const uint32_t factors = factor << 16 | factor;
    const auto scaled = [&](uint32_t& word) {
      const uint32_t bf16 = multiply_pairs(word, factors);
      const __half2 pair =
          __floats2half2_rn(__uint_as_float(bf16 << 16), __uint_as_float(bf16 & 0xFFFF0000u));
      // Kept: ptxas 13.0.88 would convert in the loop over tiles, and spill registers for that.
      word = kept(uint32_t{__half_as_ushort(pair.y)} << 16 | __half_as_ushort(pair.x));
    };
#pragma unroll
    for (uint4& v : eights) {
      scaled(v.x);
      scaled(v.y);
      scaled(v.z);
      scaled(v.w);
    }
  }

  /// The exponent of what takes back the power of two of row 2 t + i, of which lane t of a quad has
  /// sums.
  __device__ __forceinline__ uint32_t exponent_of_sums(int i) const {
    return __shfl_sync(0xFFFFFFFFu, exponent_, (static_cast<int>(threadIdx.x) & 3) * 8 + 4 * i) -
           14u;
  }

 private:
  uint32_t exponent_;  ///< of the largest
};

}  // namespace fathom::cuda
