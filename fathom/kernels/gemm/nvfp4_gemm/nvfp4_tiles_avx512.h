// The inner products of NVFP4 weights in AVX-512: codes become pairs of bf16 by table, in tiles of
// sixteen rows (formats/layout/tile_layout.h has the diagram).
#pragma once

#include <cstdint>

#include "fathom/formats/layout/super_tile.h"
#include "fathom/kernels/cpu/products/tiles_avx512.h"

namespace fathom {

/// bf16 of the sixteen E2M1 codes, twice: `vpermw` reads five bits of a lane, of which the lowest
/// four are the code and the fifth belongs to the next one.
alignas(64) inline constexpr uint16_t kE2m1Bits[32] = {
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,  // 0 .5 1 1.5 2 3 4 6
    0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,  // and their negatives
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
    0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,
};

struct Nvfp4Product : PairTiles {
  static constexpr int64_t kTileBytes = 128;

  /// total += super-tiles of 64 k times x, each block of 16 k times its scale.
  template <int T>
  static inline __attribute__((always_inline)) void add_super_tiles(const uint8_t* w,
                                                                    int64_t count,
                                                                    int64_t ahead,
                                                                    const Bf16* x,
                                                                    int64_t x_stride,
                                                                    F32 (&total)[1][T]) {
    const __m512i values = table();
    for (int64_t s = 0; s < count; ++s) {
#pragma GCC unroll 1
      for (int i = 0; i < 4; ++i) {
        const uint8_t* tile = w + i * kTileBytes;
        F32 sum[1][T];
        set_zero(sum);
        add_codes<0>(V::load_pairs(tile), values, x, x_stride, sum);
        add_codes<0>(V::load_pairs(tile + kPairBytes), values, x + 8, x_stride, sum);
        const F32 scale[1] = {load_scales(w + kSuperTileScales + i * 16)};
        add_scaled(sum, scale, total);
        x += 16;
      }
      prefetch<kSuperTileBytes>(w, ahead);
      w += kSuperTileBytes;
    }
  }

 private:
  static __m512i table() {
    return _mm512_load_si512(kE2m1Bits);
  }

  /// Nibble N of every 16-bit lane, as bf16.
  template <int N>
  static inline __attribute__((always_inline)) __m512i decode(__m512i codes, __m512i values) {
    if constexpr (N == 0) return _mm512_permutexvar_epi16(codes, values);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * N), values);
  }

  /// E4M3 scales of sixteen rows. Scales carry no sign, so exponent and mantissa moved to their
  /// places in a float32 want a factor of 2^(127-7), which makes subnormals right as well.
  static inline __attribute__((always_inline)) F32 load_scales(const uint8_t* bytes) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    return V::mul(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 20)), V::splat(0x1p120f));
  }

  /// The four pairs of k of one vector of codes.
  template <int N, int T>
  static inline __attribute__((always_inline)) void add_codes(
      __m512i codes, __m512i values, const Bf16* x, int64_t x_stride, F32 (&sum)[1][T]) {
    const __m512i weights = decode<N>(codes, values);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      sum[0][t] = V::dot_pairs(weights, V::splat_pair(x + t * x_stride + 2 * N), sum[0][t]);
    }
    if constexpr (N < 3) add_codes<N + 1>(codes, values, x, x_stride, sum);
  }
};

}  // namespace fathom
