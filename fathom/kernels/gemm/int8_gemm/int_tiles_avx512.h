// The inner product of integer weights in AVX-512: `vpdpbusd`, bytes without sign (weights) times
// bytes with sign (x), four k of sixteen rows at once, exact in int32. Tiles are as of fp8 but in
// plain order: 32-bit lane r holds k .. k+3 of row r.
#pragma once

#include <cstdint>
#include <cstring>

#include "fathom/kernels/cpu/products/row_major_loops.h"
#include "fathom/kernels/gemm/int8_gemm/int_products.h"

namespace fathom {

struct IntProduct {
  static constexpr int kRows = 6;  // with four groups 24 chains of sums
  static constexpr int64_t kElementBytes = 1;
  static constexpr int64_t kPieceK = 256;
  static constexpr int64_t kPieceTileBytes = 256 * 16;
  static constexpr int64_t kQuadBytes = 64;

  template <int G, int T>
  static void pass(const PanelPass& a) {
    __m512i sum[G][T];
    load_panel_sums(a, sum);
    for (int64_t q = 0; q < a.columns / 4; ++q) {
      __m512i weights[G];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        weights[g] = _mm512_load_si512(a.panel.tiles[g] + q * kQuadBytes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        int quad;
        std::memcpy(&quad, a.x + t * a.x_stride + 4 * q, sizeof quad);
        const __m512i x = _mm512_set1_epi32(quad);
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g)
          sum[g][t] = _mm512_dpbusd_epi32(sum[g][t], weights[g], x);
      }
    }
    store_panel_sums(a, sum);
  }

  /// Sums of row x to float32, less the offset behind its codes.
  static void finish(const uint8_t* x, const Products& p, float* acc) {
    int offset;
    std::memcpy(&offset, x + p.x_scales_at, sizeof offset);
    for (int64_t i = 0; i < kAccStride; i += 16) {
      const __m512i sum = _mm512_sub_epi32(_mm512_loadu_si512(acc + i), _mm512_set1_epi32(offset));
      _mm512_storeu_ps(acc + i, _mm512_cvtepi32_ps(sum));
    }
  }
};

}  // namespace fathom
