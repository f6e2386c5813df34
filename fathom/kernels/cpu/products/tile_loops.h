// The loops around tile products: sixteen rows of x times sixteen rows of w over 32 k, on a unit
// that has eight tile registers of sixteen rows of 64 bytes (AMX).
//
//   rows of x (at most kTileBlockRows)
//     row groups (at most kTileBlockGroups)
//       columns (kTileChunkK): x copied to tiles, weights decoded to tiles
//         row groups (2), rows of x (32): sums of 4 tiles stay in registers over the chunk
//
// Up to sixteen rows of x are one tile of just so many rows, read where it lies, times four groups
// at once: decode, which waits for memory or, with codes, for their decoding (very few rows:
// few_row_loops.h). More rows take every decoded weight many times. Between chunks the sums lie in
// memory as float32, which changes no bit of them.
//
// One order of sums for every number of rows, K cut into steps of 32 with zeros behind the last:
//
//   step     even = odd = 0; for the sixteen pairs i in order:
//              even = fma(x[2i], w[2i], even), odd = fma(x[2i+1], w[2i+1], odd)
//            step = even + odd
//   bf16     acc = acc + step, from zero
//   nvfp4    the same with w = code * block scale, which bf16 holds exactly
//   mxfp8    likewise, w = code * 2^e
//   fp8      s = s + step over the four steps of a block of 128, from zero; then
//            acc = fma(s, scale, acc)
//
// Subnormals are read as zero and results that are subnormal become zero: that is how TDPBF16PS is
// defined (Intel SDM, volume 2). few_row_loops.h gives the same bits without the unit.
//
// A Unit has
//   V                                  vectors for ResultWriter
//   configure(rows), release()         rows of the tiles of x and of sums: 0 to 3 hold sums, 4 and
//                                      5 x, 6 and 7 w
//   zero<T>, load<T>, store<T>         of tile T; strides in bytes
//   dot<C, A, B>                       C += A B
//   add_scaled                         sums = s * scale + sums over a tile, fused
//
// and Weights are as tile_weights.h has them.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "fathom/kernels/cpu/products/product_rows.h"

namespace fathom {

/// A tile of x or w is sixteen rows of 64 bytes, and so is one of sums.
inline constexpr int64_t kTileK = 32;
inline constexpr int64_t kTileBytes = 1024;
inline constexpr int64_t kTileFloats = 256;
inline constexpr int64_t kLineBytes = 64;

/// Where the tiles of x lie; strides in bytes.
struct XTiles {
  const uint8_t* first;
  int64_t row_stride, step_stride, tile_stride;
};

/// R tiles of x times G groups over a chunk of columns.
struct TileCall {
  XTiles x;
  int64_t rows;      ///< of a tile of x
  const uint8_t* w;  ///< tiles of one group after another
  int64_t w_stride;  ///< bytes between groups
  int64_t steps;
  bool first;          ///< sums begin at zero
  float* sums;         ///< row tiles of one group after another
  int64_t sum_stride;  ///< floats between groups
  float* spare;        ///< 2 * R * G tiles, for scaled blocks
  const float* scales;
  int64_t scale_stride;  ///< floats between groups

  // Memory that the next chunk will read: asked for a few lines a step, so that it comes while the
  // unit computes.
  const uint8_t* w_ask;
  int64_t w_ask_stride, w_ask_lines;  ///< bytes between groups; lines a step and group
  const uint8_t* x_ask;
  int64_t x_ask_stride, x_ask_rows;  ///< bytes between rows; a line a step of so many rows
};

/// Calls f<0>(), ... f<N - 1>().
template <int N, class F>
inline __attribute__((always_inline)) void for_constants(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f.template operator()<I>(), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

template <class Unit, class Weights, int R, int G>
struct TileKernel {
  /// The register of sums of row tile r and group g.
  static constexpr int sum(int r, int g) { return R == 1 ? g : 2 * r + g; }

  static constexpr int x(int r) { return 4 + r; }

  static constexpr int w(int g) { return 6 + g % 2; }

  static void run(const TileCall& call) {
    const TileCall c = call;
    if constexpr (Weights::kBlockScales) {
      run_scaled(c);
    } else {
      if (c.first) {
        zero_sums();
      } else {
        load_sums(c);
      }
      add_steps(c, 0, c.steps);
      store_sums(c.sums, c.sum_stride);
    }
  }

 private:
  static inline __attribute__((always_inline)) void zero_sums() {
    for_constants<R * G>(
        []<int I>() __attribute__((always_inline)) { Unit::template zero<sum(I / G, I % G)>(); });
  }

  static inline __attribute__((always_inline)) void load_sums(const TileCall& c) {
    for_constants<R * G>([&]<int I>() __attribute__((always_inline)) {
      Unit::template load<sum(I / G, I % G)>(c.sums + I % G * c.sum_stride + I / G * kTileFloats,
                                             kLineBytes);
    });
  }

  static inline __attribute__((always_inline)) void store_sums(float* sums, int64_t group_stride) {
    for_constants<R * G>([&]<int I>() __attribute__((always_inline)) {
      Unit::template store<sum(I / G, I % G)>(sums + I % G * group_stride + I / G * kTileFloats,
                                              kLineBytes);
    });
  }

  static inline __attribute__((always_inline)) void add_steps(const TileCall& c,
                                                              int64_t begin,
                                                              int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      ask(c, s);
      const uint8_t* x_tile = c.x.first + s * c.x.step_stride;
      const uint8_t* w_tile = c.w + s * kTileBytes;
      for_constants<R>([&]<int I>() __attribute__((always_inline)) {
        Unit::template load<x(I)>(x_tile + I * c.x.tile_stride, c.x.row_stride);
      });
      for_constants<G>([&]<int J>() __attribute__((always_inline)) {
        Unit::template load<w(J)>(w_tile + J * c.w_stride, kLineBytes);
        for_constants<R>([&]<int I>() __attribute__((always_inline)) {
          Unit::template dot<sum(I, J), x(I), w(J)>();
        });
      });
    }
  }

  static inline __attribute__((always_inline)) void ask(const TileCall& c, int64_t s) {
    for (int64_t i = 0; i < c.w_ask_lines; ++i) {
      for (int g = 0; g < G; ++g) {
        __builtin_prefetch(c.w_ask + g * c.w_ask_stride + (s * c.w_ask_lines + i) * kLineBytes, 0,
                           2);
      }
    }
    for (int64_t i = 0; i < c.x_ask_rows; ++i)
      __builtin_prefetch(c.x_ask + i * c.x_ask_stride + s * kLineBytes, 0, 2);
  }

  /// Sums of a block go to spare memory; they are scaled while the unit does the next block.
  static inline __attribute__((always_inline)) void run_scaled(const TileCall& c) {
    constexpr int64_t kBlockSteps = 4;
    const int64_t blocks = (c.steps + kBlockSteps - 1) / kBlockSteps;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t end = (b + 1) * kBlockSteps;
      zero_sums();
      add_steps(c, b * kBlockSteps, end < c.steps ? end : c.steps);
      store_sums(spare_of(c, b), R * kTileFloats);
      if (b > 0) add_block(c, b - 1);
    }
    add_block(c, blocks - 1);
  }

  static inline __attribute__((always_inline)) float* spare_of(const TileCall& c, int64_t block) {
    return c.spare + block % 2 * R * G * kTileFloats;
  }

  static inline __attribute__((always_inline)) void add_block(const TileCall& c, int64_t block) {
    const float* s = spare_of(c, block);
    for (int g = 0; g < G; ++g) {
      const float scale = c.scales[g * c.scale_stride + block];
      for (int r = 0; r < R; ++r) {
        Unit::add_scaled(s + (g * R + r) * kTileFloats, scale, c.first && block == 0, c.rows,
                         c.sums + g * c.sum_stride + r * kTileFloats);
      }
    }
  }
};

template <class Unit, class Weights>
struct TileLoops {
  static void run(const Products& p, const WorkItem& item, void* memory) {
    const int64_t rows = item.row_end - item.row_begin;
    const Memory m(memory, rows < kTileBlockRows ? rows : kTileBlockRows);
    for (int64_t t0 = item.row_begin; t0 < item.row_end; t0 += kTileBlockRows) {
      const int64_t left = item.row_end - t0;
      const int64_t count = left < kTileBlockRows ? left : kTileBlockRows;
      const Block block{p, item.matrix, t0, count, (count + 15) / 16};
      const int64_t most = block.tiles == 1 ? 4 : kTileBlockGroups;
      Unit::configure(block.tile_rows());
      for (int64_t g = item.group_begin; g < item.group_end; g += most) {
        const int64_t groups = item.group_end - g < most ? item.group_end - g : most;
        multiply(block, g, groups, m);
        store(block, g, groups, m.sums);
      }
    }
    Unit::release();
  }

 private:
  /// Rows t0 .. of matrix m.
  struct Block {
    const Products& p;
    int64_t matrix;
    int64_t t0, count;
    int64_t tiles;

    int64_t tile_rows() const { return count < 16 ? count : 16; }
  };

  /// The parts of the scratch memory, for so many rows.
  struct Memory {
    uint8_t* panel;
    float* spare;
    uint8_t* x_tiles;
    float* sums;

    Memory(void* memory, int64_t rows) {
      panel = static_cast<uint8_t*>(memory);
      spare = reinterpret_cast<float*>(panel + kTilePanelBytes);
      x_tiles = reinterpret_cast<uint8_t*>(spare) + kTileSpareBytes;
      sums = reinterpret_cast<float*>(x_tiles + (rows + 15) / 16 * 16 * kTileChunkK * 2);
    }
  };

  static void multiply(const Block& b, int64_t g, int64_t groups, const Memory& m) {
    const Products& p = b.p;
    if (p.k == 0) {
      std::memset(m.sums, 0, static_cast<size_t>(groups * b.tiles * kTileBytes));
    }
    for (int64_t k0 = 0; k0 < p.k; k0 += kTileChunkK) {
      const int64_t columns = p.k - k0 < kTileChunkK ? p.k - k0 : kTileChunkK;
      const bool last = k0 + columns == p.k;
      const Chunk c{k0, columns, (columns + kTileK - 1) / kTileK, last ? 0 : k0 + kTileChunkK,
                    last ? groups : 0};
      multiply_chunk(b, g, groups, c, m);
    }
  }

  /// Columns k0 .. and where the weights and x of the next chunk are: at column `next_k`, and
  /// `next_groups` further on.
  struct Chunk {
    int64_t k0, columns, steps;
    int64_t next_k, next_groups;
  };

  static void multiply_chunk(
      const Block& b, int64_t g, int64_t groups, const Chunk& c, const Memory& m) {
    const Products& p = b.p;
    const int64_t group = b.matrix * p.groups + g;  // counted through all matrices
    const XTiles x = x_tiles(b, c, m.x_tiles);
    const bool in_place = Weights::kInPlace && c.columns % kTileK == 0;
    if (!in_place) {
      for (int64_t j = 0; j < groups; ++j) {
        Weights::decode(p, group + j, c.k0, c.columns,
                        Weights::at(p, group + j + c.next_groups, c.next_k),
                        m.panel + j * kTileChunkK * 32);
      }
    }
    const int64_t side = b.tiles == 1 ? 4 : 2;
    const int64_t pairs = (b.tiles + 1) / 2;
    for (int64_t j = 0; j < groups; j += side) {
      const int64_t num = groups - j < side ? groups - j : side;
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t first = 2 * i;
        TileCall call{};
        call.x = x;
        call.x.first += first * x.tile_stride;
        call.rows = b.tile_rows();
        call.w = in_place ? Weights::at(p, group + j, c.k0) : m.panel + j * kTileChunkK * 32;
        call.w_stride = in_place ? p.group_bytes : kTileChunkK * 32;
        call.steps = c.steps;
        call.first = c.k0 == 0;
        call.sums = m.sums + (j * b.tiles + first) * kTileFloats;
        call.sum_stride = b.tiles * kTileFloats;
        call.spare = m.spare;
        if constexpr (Weights::kBlockScales) {
          call.scales = p.scales + (group + j) * p.group_scales + c.k0 / 128;
          call.scale_stride = p.group_scales;
        }
        if (in_place) ask_weights(p, group + j, c, i, pairs, call);
        if (b.tiles > 2) ask_x(b, c, i, j / side, (groups + side - 1) / side, call);
        kernel_of(b.tiles - first, num)(call);
      }
    }
  }

  /// Call i of `calls` over the same weights asks for its share of those of the next chunk.
  static void ask_weights(
      const Products& p, int64_t group, const Chunk& c, int64_t i, int64_t calls, TileCall& call) {
    const int64_t lines = kTileChunkK * 32 / kLineBytes;
    const int64_t share = (lines + calls * c.steps - 1) / (calls * c.steps);
    if (i * c.steps * share >= lines) return;
    call.w_ask = Weights::at(p, group + c.next_groups, c.next_k) + i * c.steps * share * kLineBytes;
    call.w_ask_stride = p.group_bytes;
    call.w_ask_lines = share;
  }

  /// The same for rows of x, which are shared out over the groups.
  static void ask_x(
      const Block& b, const Chunk& c, int64_t i, int64_t j, int64_t calls, TileCall& call) {
    const int64_t share = (32 + calls - 1) / calls;
    const int64_t begin = 32 * i + j * share;
    const int64_t end = begin + share < b.count ? begin + share : b.count;
    if (begin >= end || j * share >= 32) return;
    call.x_ask =
        reinterpret_cast<const uint8_t*>(x_row<Bf16>(b.p, b.matrix, b.t0 + begin, c.next_k));
    call.x_ask_stride = b.p.x_row_stride * 2;
    call.x_ask_rows = end - begin;
  }

  /// One tile of whole steps is read in place. More are copied: a row of x is often a multiple of
  /// 4 KiB long, and rows so far apart share a few lines of a cache. Rows and columns that are not
  /// there are zero.
  static XTiles x_tiles(const Block& b, const Chunk& c, uint8_t* out) {
    if (b.tiles == 1 && c.columns % kTileK == 0) {
      return {reinterpret_cast<const uint8_t*>(x_row<Bf16>(b.p, b.matrix, b.t0, c.k0)),
              b.p.x_row_stride * 2, kLineBytes, 0};
    }
    const int64_t bytes = c.columns * 2;
    for (int64_t t = 0; t < b.tiles * 16; ++t) {
      uint8_t* to = out + t / 16 * c.steps * kTileBytes + t % 16 * kLineBytes;
      const auto* from = reinterpret_cast<const uint8_t*>(
          x_row<Bf16>(b.p, b.matrix, b.t0 + (t < b.count ? t : 0), c.k0));
      for (int64_t s = 0; s < c.steps; ++s) {
        const int64_t left = t < b.count ? bytes - s * kLineBytes : 0;
        copy_line(from + s * kLineBytes, left, to + s * kTileBytes);
      }
    }
    return {out, kLineBytes, kTileBytes, c.steps * kTileBytes};
  }

  static inline __attribute__((always_inline)) void copy_line(const uint8_t* from,
                                                              int64_t bytes,
                                                              uint8_t* to) {
    if (bytes >= kLineBytes) {
      std::memcpy(to, from, kLineBytes);
    } else {
      std::memset(to, 0, kLineBytes);
      if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  }

  static void store(const Block& b, int64_t g, int64_t groups, const float* sums) {
    for (int64_t r = 0; r < b.tiles; ++r) {
      const int64_t rows = b.count - 16 * r < 16 ? b.count - 16 * r : 16;
      for (int64_t j = 0; j < groups; ++j) {
        ResultWriter<typename Unit::V, Weights::kHasGlobal>::store_block(
            b.p, b.matrix, g + j, 1, b.t0 + 16 * r, rows, sums + (j * b.tiles + r) * kTileFloats,
            16);
      }
    }
  }

  using Kernel = void (*)(const TileCall&);

  /// One row tile takes up to four groups, two or more take two of each.
  static Kernel kernel_of(int64_t row_tiles, int64_t groups) {
    static constexpr FunctionTable<Kernel, 4> kOne{
        TileKernel<Unit, Weights, 1, 1>::run, TileKernel<Unit, Weights, 1, 2>::run,
        TileKernel<Unit, Weights, 1, 3>::run, TileKernel<Unit, Weights, 1, 4>::run};
    static constexpr FunctionTable<Kernel, 2> kTwo{TileKernel<Unit, Weights, 2, 1>::run,
                                                   TileKernel<Unit, Weights, 2, 2>::run};
    return row_tiles == 1 ? kOne.f[groups - 1] : kTwo.f[groups - 1];
  }
};

}  // namespace fathom
