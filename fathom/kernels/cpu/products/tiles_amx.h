// The tile registers of AMX, for tile_loops.h.
#pragma once

#include <cstdint>

#include "fathom/kernels/cpu/products/tile_loops.h"
#include "fathom/kernels/simd/vec.h"

namespace fathom {

/// Tiles are numbers in the encoding of an instruction, so the intrinsics take literals alone;
/// assembly takes template arguments. Loads and stores say that they touch memory, which the
/// intrinsics of GCC 12 do not, so that copies and decoded weights are written before they are
/// read.
struct AmxTiles {
  using V = simd::Avx512;

  /// Operand of LDTILECFG (Intel SDM, volume 1, chapter 18).
  struct alignas(64) Config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };

  static_assert(sizeof(Config) == 64, "LDTILECFG reads 64 bytes");

  static void configure(int64_t rows) {
    Config config{};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = 64;
      config.rows[i] = i < 6 ? static_cast<uint8_t>(rows) : 16;
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }

  /// Threads without live tiles are cheaper to switch.
  static void release() { asm volatile("tilerelease"); }

  template <int T>
  static inline __attribute__((always_inline)) void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }

  template <int T>
  static inline __attribute__((always_inline)) void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
  }

  template <int T>
  static inline __attribute__((always_inline)) void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
  }

  template <int C, int A, int B>
  static inline __attribute__((always_inline)) void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }

  static inline __attribute__((always_inline)) void add_scaled(
      const float* s, float scale, bool first, int64_t rows, float* sums) {
    const V::F32 factor = V::splat(scale);
    for (int64_t r = 0; r < rows; ++r) {
      const V::F32 before = first ? V::zero() : V::load(sums + r * 16);
      V::store(sums + r * 16, V::fma(V::load(s + r * 16), factor, before));
    }
  }
};

}  // namespace fathom
