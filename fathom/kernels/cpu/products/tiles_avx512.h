// The inner products of AVX-512: weights as pairs of bf16 in the lanes of sixteen rows, one
// `vdpbf16ps` a pair of k. The order of the sums is fixed by the contracts:
//
//   bf16    acc = dot_pairs(w, x, acc) for every pair of k, in order
//   fp8     s = 0; s = dot_pairs(code, x, s) over the 128 k of a block; acc = fma(s, scale, acc)
//   nvfp4   the same over 16 k
//   mxfp8   the same over 32 k
//
// so that every size of block gives the same bits.
#pragma once

#include <cstdint>

#include "fathom/kernels/cpu/products/stream_loops.h"
#include "fathom/kernels/simd/vec.h"

namespace fathom {

struct PairTiles {
  using V = simd::Avx512;
  using F32 = V::F32;
  static constexpr int64_t kPairBytes = 64;  // sixteen rows of one pair

  /// Asks for kBytes of weights, `ahead` bytes further on, that will be read soon.
  template <int64_t kBytes>
  static inline __attribute__((always_inline)) void prefetch(const uint8_t* w, int64_t ahead) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kBytes; i += 64)
      _mm_prefetch(w + ahead + i, _MM_HINT_T0);
  }

  /// The accumulators so far: none before column 0.
  template <int G, int T>
  static inline __attribute__((always_inline)) void load_sums(const Pass& pass, F32 (&sum)[G][T]) {
    if (pass.k0 == 0) return set_zero(sum);
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        sum[g][t] = V::load(pass.acc + t * kAccStride + g * 16);
    }
  }

  template <int G, int T>
  static inline __attribute__((always_inline)) void store_sums(const Pass& pass,
                                                               const F32 (&sum)[G][T]) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        V::store(pass.acc + t * kAccStride + g * 16, sum[g][t]);
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
