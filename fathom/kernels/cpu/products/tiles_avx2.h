// The inner products of AVX2: weights as float32, sixteen rows in two vectors, one fused
// multiply-add a k. The order of the sums is that of the contracts, k by k:
//
//   bf16    acc = fma(w, x, acc) for every k, in order
//   fp8     s = 0; s = fma(code, x, s) over the 128 k of a block; acc = fma(s, scale, acc)
//   nvfp4   the same over 16 k
//   mxfp8   as bf16, with w = code * 2^e
//
// Activations may be bf16 or float32.
#pragma once

#include <cstdint>
#include <cstring>

#include "fathom/kernels/cpu/products/panel_loops.h"
#include "fathom/kernels/simd/vec.h"

namespace fathom {

struct FloatTiles {
  using V = simd::Avx2;
  using F32 = V::F32;
  static constexpr int kTokens = 6;

  /// A pair of bf16 in each 32-bit lane, as the float32 of its first and of its second.
  static F32 first_of_pair(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  }

  static F32 second_of_pair(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
  }

  static __m256i load_lanes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }

  /// sum[h][t] += w[k][8h..] * x[t][k] over k in order; w is [k][16].
  template <int T>
  static inline __attribute__((always_inline)) void add_columns(
      const float* w, const float* x, int64_t x_stride, int64_t columns, F32 (&sum)[2][T]) {
    for (int64_t k = 0; k < columns; ++k) {
      const F32 low = V::load(w + k * 16);
      const F32 high = V::load(w + k * 16 + 8);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const F32 value = V::splat(x[t * x_stride + k]);
        sum[0][t] = V::fma(low, value, sum[0][t]);
        sum[1][t] = V::fma(high, value, sum[1][t]);
      }
    }
  }

  /// The same with sums in memory, acc[t].
  template <int T>
  static inline __attribute__((always_inline)) void add_to_sums(
      const float* w, const float* x, int64_t x_stride, int64_t columns, float* acc) {
    F32 sum[2][T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      sum[0][t] = V::load(acc + t * 16);
      sum[1][t] = V::load(acc + t * 16 + 8);
    }
    add_columns(w, x, x_stride, columns, sum);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      V::store(acc + t * 16, sum[0][t]);
      V::store(acc + t * 16 + 8, sum[1][t]);
    }
  }

  template <int T>
  static inline __attribute__((always_inline)) void set_zero(F32 (&sum)[2][T]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
      sum[0][t] = sum[1][t] = V::zero();
  }

  /// acc[t] = sum * scale + acc, with the scales of sixteen rows.
  template <int T>
  static inline __attribute__((always_inline)) void add_scaled(const F32 (&sum)[2][T],
                                                               F32 scale_low,
                                                               F32 scale_high,
                                                               float* acc) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      float* a = acc + t * 16;
      V::store(a, V::fma(sum[0][t], scale_low, V::load(a)));
      V::store(a + 8, V::fma(sum[1][t], scale_high, V::load(a + 8)));
    }
  }
};

}  // namespace fathom
