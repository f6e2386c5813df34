// The inner products of FP8 weights in AVX-512.
#pragma once

#include <cstdint>

#include "fathom/kernels/cpu/products/tiles_avx512.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_pairs_avx512.h"

namespace fathom {

/// Scales of G groups and T rows of x, one for 128 k each.
struct Fp8Scales {
  const float* w = nullptr;
  int64_t w_stride = 0;  ///< from group to group
  const float* x = nullptr;
  int64_t x_stride = 0;  ///< from row to row
};

/// kWeight, kX: which of the two have block scales.
template <class Decoder, bool kWeight, bool kX>
struct Fp8Product : PairTiles {
  static constexpr int64_t kQuadBytes = 64;
  static constexpr int64_t kBlockQuads = 32;  // of one scale: 128 k

  /// total += the sums of each block of 128 k times its scales.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_blocks(const Decoder& decoder,
                                                               const uint8_t* w,
                                                               int64_t group_bytes,
                                                               int64_t ahead,
                                                               const Bf16* x,
                                                               int64_t x_stride,
                                                               int64_t quads,
                                                               const Fp8Scales& scales,
                                                               F32 (&total)[G][T]) {
    for (int64_t q = 0; q < quads; q += kBlockQuads) {
      const int64_t left = quads - q;
      F32 sum[G][T];
      set_zero(sum);
      add_block(decoder, w + q * kQuadBytes, group_bytes, ahead, x + 4 * q, x_stride,
                left < kBlockQuads ? left : kBlockQuads, sum);
      add_block_sums(scales, q / kBlockQuads, sum, total);
    }
  }

 private:
  /// The codes of one block of at most 128 k times x.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_block(const Decoder& decoder,
                                                              const uint8_t* w,
                                                              int64_t group_bytes,
                                                              int64_t ahead,
                                                              const Bf16* x,
                                                              int64_t x_stride,
                                                              int64_t quads,
                                                              F32 (&sum)[G][T]) {
    for (int64_t q = 0; q < quads; ++q) {
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        const uint8_t* codes = w + g * group_bytes + q * kQuadBytes;
        __m512i first, second;
        decoder.decode(codes, first, second);
        prefetch<kQuadBytes>(codes, ahead);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const Bf16* pair = x + t * x_stride + 4 * q;
          sum[g][t] = V::dot_pairs(first, V::splat_pair(pair), sum[g][t]);
          sum[g][t] = V::dot_pairs(second, V::splat_pair(pair + 2), sum[g][t]);
        }
      }
    }
  }

  /// total = sum * (scale of w * scale of x) + total.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_block_sums(const Fp8Scales& scales,
                                                                   int64_t block,
                                                                   const F32 (&sum)[G][T],
                                                                   F32 (&total)[G][T]) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const F32 weight = V::splat(kWeight ? scales.w[g * scales.w_stride + block] : 1.0f);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        F32 scale = weight;
        if constexpr (kX) scale = V::mul(weight, V::splat(scales.x[t * scales.x_stride + block]));
        total[g][t] = V::fma(sum[g][t], scale, total[g][t]);
      }
    }
  }
};

}  // namespace fathom
