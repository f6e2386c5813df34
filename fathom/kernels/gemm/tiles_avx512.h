// The inner products of AVX-512: weights as pairs of bf16 in the lanes of sixteen rows, one
// `vdpbf16ps` a pair of k. The order of the sums is fixed by the contracts:
//
//   bf16    acc = dot_pairs(w, x, acc) for every pair of k, in order
//   fp8     s = 0; s = dot_pairs(code, x, s) over the 128 k of a block; acc = fma(s, scale, acc)
//   nvfp4   the same over 16 k
//
// so the streaming form and the panel form, and every size of block, give the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "fathom/kernels/gemm/product_loops.h"
#include "fathom/kernels/simd/vec.h"

namespace fathom {

struct PairTiles {
  using V = simd::Avx512;
  using F32 = V::F32;
  using Element = Bf16;
  static constexpr int kGroups = 4;
  static constexpr int kTokens = 6;
  static constexpr int64_t kPairBytes = 64;  // sixteen rows of one pair
  static constexpr int64_t kChunkPairs = kChunkK / 2;

  /// Asks for kBytes of memory that will be read soon.
  template <int64_t kBytes>
  static inline __attribute__((always_inline)) void prefetch(const uint8_t* p) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kBytes; i += 64)
      _mm_prefetch(p + i, _MM_HINT_T0);
  }

  static void load_row(const Bf16* x, int64_t count, Bf16* out) {
    std::memcpy(out, x, static_cast<size_t>(count) * sizeof(Bf16));
  }

  /// Weights to ask for while an inner product runs, at `step` bytes a pair.
  struct Ask {
    const uint8_t* w;
    int64_t step;
  };

  /// sum[g][t] = dot_pairs(...) over `pairs` pairs of k, in order. With kAsk, also brings the
  /// weights of `ask` into the second-level cache.
  template <bool kAsk = false, int G, int T>
  static inline __attribute__((always_inline)) void add_pairs(const uint8_t* w,
                                                              int64_t group_stride,
                                                              const Bf16* x,
                                                              int64_t x_stride,
                                                              int64_t pairs,
                                                              F32 (&sum)[G][T],
                                                              Ask ask = {}) {
    for (int64_t p = 0; p < pairs; ++p) {
      __m512i weights[G];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        weights[g] = V::load_pairs(w + g * group_stride + p * kPairBytes);
        if constexpr (kAsk) _mm_prefetch(ask.w + g * group_stride + p * ask.step, _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512i pair = V::splat_pair(x + t * x_stride + 2 * p);
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g)
          sum[g][t] = V::dot_pairs(weights[g], pair, sum[g][t]);
      }
    }
  }

  /// sum[g][t] = acc[t][g]
  template <int G, int T>
  static inline __attribute__((always_inline)) void load_sums(const float* acc,
                                                              int64_t acc_stride,
                                                              F32 (&sum)[G][T]) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        sum[g][t] = V::load(acc + t * acc_stride + g * 16);
    }
  }

  template <int G, int T>
  static inline __attribute__((always_inline)) void store_sums(const F32 (&sum)[G][T],
                                                               float* acc,
                                                               int64_t acc_stride) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        V::store(acc + t * acc_stride + g * 16, sum[g][t]);
    }
  }

  template <int G, int T>
  static inline __attribute__((always_inline)) void set_zero(F32 (&sum)[G][T]) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        sum[g][t] = V::zero();
    }
  }

  /// total = sum * scale + total, with one scale vector a group.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_scaled(const F32 (&sum)[G][T],
                                                               const F32 (&scale)[G],
                                                               F32 (&total)[G][T]) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        total[g][t] = V::fma(sum[g][t], scale[g], total[g][t]);
    }
  }
};

}  // namespace fathom
