// The loops around the inner products of AVX2: weights of one group and kChunkK columns are decoded
// into the first-level cache and meet up to kRowBlock rows of x, of which the same columns lie side
// by side in the second-level cache. Accumulators are kept in memory between chunks as float32,
// which changes no bit of them.
//
// A Tiles type has
//   kTokens                 most rows of x of one inner product
//   Panel, load_panel       weights [16 rows] x [columns k0, k1) as float32, ready for the product
//   dot<T>                  acc[t][16] += x[t] . panel
//   kHasGlobal              results are multiplied by the global scale of their group
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "fathom/kernels/cpu/products/product_rows.h"

namespace fathom {

template <class Tiles>
struct PanelLoops {
  using V = simd::Native;
  using Panel = typename Tiles::Panel;
  using Dot = void (*)(const Panel&, const float* x, int64_t x_stride, float* acc);

  static_assert(sizeof(typename Tiles::PanelMemory) <= kPanelBytes, "see product_scratch_bytes");
  static_assert(sizeof(typename Tiles::PanelMemory) % 64 == 0, "accumulators follow it");

  static constexpr int kTokens = Tiles::kTokens;

  /// The thread's memory, cut for as many rows as a block can have in this call.
  struct Scratch {
    typename Tiles::PanelMemory* panel;
    float* acc;  // [rows][16]
    float* x;    // [rows][kChunkK]

    Scratch(const Products& p, void* memory) {
      const int64_t rows = p.rows < kRowBlock ? p.rows : kRowBlock;
      panel = static_cast<typename Tiles::PanelMemory*>(memory);
      acc = reinterpret_cast<float*>(panel + 1);
      x = acc + rows * 16;
    }
  };

  static void run(const Products& p, const WorkItem& item, void* memory) {
    const Scratch scratch(p, memory);
    for (int64_t t0 = item.row_begin; t0 < item.row_end; t0 += kRowBlock) {
      const int64_t t1 = item.row_end < t0 + kRowBlock ? item.row_end : t0 + kRowBlock;
      for (int64_t g = item.group_begin; g < item.group_end; ++g) {
        multiply_group(p, item.matrix, g, t0, t1, scratch);
      }
    }
  }

 private:
  static void multiply_group(
      const Products& p, int64_t m, int64_t g, int64_t t0, int64_t t1, const Scratch& scratch) {
    const int64_t rows = t1 - t0;
    std::memset(scratch.acc, 0, static_cast<size_t>(rows * 16) * sizeof(float));
    for (int64_t k0 = 0; k0 < p.k; k0 += kChunkK) {
      const int64_t k1 = p.k < k0 + kChunkK ? p.k : k0 + kChunkK;
      const Panel panel = Tiles::load_panel(p, m * p.groups + g, k0, k1, scratch.panel);
      for (int64_t t = 0; t < rows; ++t) {
        load_x(p, m, t0 + t, k0, k1 - k0, scratch.x + t * kChunkK);
      }
      // Blocks of rows as even as they can be: 13 rows are 5 + 4 + 4, not 6 + 6 + 1.
      const int64_t blocks = (rows + kTokens - 1) / kTokens;
      for (int64_t b = 0, t = 0; b < blocks; ++b) {
        const int64_t count = (rows - t + blocks - b - 1) / (blocks - b);
        dot_of(count)(panel, scratch.x + t * kChunkK, kChunkK, scratch.acc + t * 16);
        t += count;
      }
    }
    ResultWriter<V, Tiles::kHasGlobal>::store_block(p, m, g, 1, t0, rows, scratch.acc, 16);
  }

  static void load_x(
      const Products& p, int64_t m, int64_t t, int64_t k0, int64_t count, float* out) {
    if (p.x_type == ElementType::kF32) {
      std::memcpy(out, x_row<float>(p, m, t, k0), static_cast<size_t>(count) * sizeof(float));
      return;
    }
    const Bf16* x = x_row<Bf16>(p, m, t, k0);
    int64_t k = 0;
    for (; k + V::kWidth <= count; k += V::kWidth)
      V::store(out + k, V::load(x + k));
    if (k < count) V::store_first(out + k, V::load_first(x + k, count - k), count - k);
  }

  static Dot dot_of(int64_t rows) {
    static constexpr auto kTable = []<size_t... I>(std::index_sequence<I...>) {
      return FunctionTable<Dot, kTokens>{Tiles::template dot<static_cast<int>(I) + 1>...};
    }
    (std::make_index_sequence<kTokens>{});
    return kTable.f[rows - 1];
  }
};

}  // namespace fathom
