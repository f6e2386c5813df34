// The loops around the inner products, for any instruction set and weight format.
//
// Few rows of x: `Tiles::stream` reads the weights once, from memory to registers. Many: weights of
// four groups and kChunkK columns are decoded into the first-level cache and meet up to kRowBlock
// rows of x, of which the same columns lie side by side in the second-level cache; accumulators are
// kept in memory between chunks as float32, which changes no bit of them.
//
// A Tiles type has
//   kGroups, kTokens        largest block of row groups and rows of x of one inner product
//   Element                 of x as the inner product reads it
//   Panel, load_panel       weights [G groups] x [columns k0, k1), ready for the inner product
//   dot<G, T>               acc[t][g][16] += x[t] . panel
//   kStreamRows, stream<T>  optional, for so many rows T at most and k % kStreamUnit == 0: does
//                           some of the `left` groups from `group` on and returns how many
//   begin_rows              optional: the panel is about to meet block b of the rows of x
//   kHasGlobal              results are multiplied by the global scale of their group
//
// Everything here is a template on Tiles, so that nothing leaks between instruction sets.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "fathom/kernels/gemm/products.h"
#include "fathom/kernels/simd/vec.h"

namespace fathom {

inline constexpr int64_t kPanelRows = 64;         // rows of w in a block of four groups
inline constexpr int64_t kStreamPanelRows = 128;  // and in what `stream` does at once, at most

template <class Tiles>
struct ProductLoops {
  using V = simd::Native;
  using Element = typename Tiles::Element;
  using Dot = void (*)(const typename Tiles::Panel&,
                       const Element* x,
                       int64_t x_stride,
                       float* acc);

  static_assert(sizeof(typename Tiles::PanelMemory) <= kPanelBytes, "see product_scratch_bytes");
  static_assert(sizeof(typename Tiles::PanelMemory) % 64 == 0, "accumulators follow it");

  static constexpr int kGroups = Tiles::kGroups;
  static constexpr int kTokens = Tiles::kTokens;

  /// The thread's memory, cut for as many rows as a block can have in this call.
  struct Scratch {
    typename Tiles::PanelMemory* panel;
    float* acc;  // [rows][kPanelRows]
    Element* x;  // [rows][kChunkK]

    Scratch(const Products& p, void* memory) {
      const int64_t rows = p.rows < kRowBlock ? p.rows : kRowBlock;
      panel = static_cast<typename Tiles::PanelMemory*>(memory);
      acc = reinterpret_cast<float*>(panel + 1);
      x = reinterpret_cast<Element*>(acc + rows * kPanelRows);
    }
  };

  static void run(const Products& p, const WorkItem& item, void* memory) {
    const Scratch scratch(p, memory);
    const int64_t rows = item.row_end - item.row_begin;
    if constexpr (requires { Tiles::kStreamRows; }) {
      if (rows <= Tiles::kStreamRows && p.k % Tiles::kStreamUnit == 0 && p.k > 0) {
        return stream(p, item);
      }
    }
    for (int64_t t0 = item.row_begin; t0 < item.row_end; t0 += kRowBlock) {
      const int64_t t1 = item.row_end < t0 + kRowBlock ? item.row_end : t0 + kRowBlock;
      for (int64_t g = item.group_begin; g < item.group_end; g += kGroups) {
        const int64_t left = item.group_end - g;
        multiply_block(p, item.matrix, g, left < kGroups ? static_cast<int>(left) : kGroups, t0, t1,
                       scratch);
      }
    }
  }

 private:
  /// Row t of matrix m of x, from column k on.
  template <class T>
  static const T* x_row(const Products& p, int64_t m, int64_t t, int64_t k) {
    return static_cast<const T*>(p.x) + p.x_begin(m) + t * p.x_row_stride + k;
  }

  static void multiply_block(const Products& p,
                             int64_t m,
                             int64_t g,
                             int num_groups,
                             int64_t t0,
                             int64_t t1,
                             const Scratch& scratch) {
    const int64_t rows = t1 - t0;
    std::memset(scratch.acc, 0, static_cast<size_t>(rows * kPanelRows) * sizeof(float));
    for (int64_t k0 = 0; k0 < p.k; k0 += kChunkK) {
      const int64_t k1 = p.k < k0 + kChunkK ? p.k : k0 + kChunkK;
      auto panel = Tiles::load_panel(p, m * p.groups + g, num_groups, k0, k1, scratch.panel);
      for (int64_t t = 0; t < rows; ++t) {
        load_x(p, m, t0 + t, k0, k1, Tiles::padded(k1 - k0), scratch.x + t * kChunkK);
      }
      // Blocks of rows as even as they can be: 13 rows are 5 + 4 + 4, not 6 + 6 + 1.
      const int64_t blocks = (rows + kTokens - 1) / kTokens;
      for (int64_t b = 0, t = 0; b < blocks; ++b) {
        const int64_t count = (rows - t + blocks - b - 1) / (blocks - b);
        if constexpr (requires { Tiles::begin_rows(panel, b, blocks); }) {
          Tiles::begin_rows(panel, b, blocks);
        }
        dot_of(num_groups, static_cast<int>(count))(panel, scratch.x + t * kChunkK, kChunkK,
                                                    scratch.acc + t * kPanelRows);
        t += count;
      }
    }
    store_block(p, m, g, num_groups, t0, rows, scratch.acc, kPanelRows);
  }

  /// Columns [k0, k1) of a row, and zeros up to `padded` columns.
  static void load_x(const Products& p,
                     int64_t m,
                     int64_t t,
                     int64_t k0,
                     int64_t k1,
                     int64_t padded,
                     Element* out) {
    const int64_t count = k1 - k0;
    if (p.x_type == ElementType::kBf16) {
      Tiles::load_row(x_row<Bf16>(p, m, t, k0), count, out);
    } else if constexpr (sizeof(Element) == sizeof(float)) {
      std::memcpy(out, x_row<float>(p, m, t, k0), static_cast<size_t>(count) * sizeof(float));
    }
    if (padded > count) {
      std::memset(out + count, 0, static_cast<size_t>(padded - count) * sizeof(Element));
    }
  }

  template <class Function, size_t kSize>
  struct Table {
    Function f[kSize];
  };

  static Dot dot_of(int num_groups, int num_rows) {
    static constexpr auto kTable = []<size_t... I>(std::index_sequence<I...>) {
      return Table<Dot, sizeof...(I)>{Tiles::template dot<static_cast<int>(I) / kTokens + 1,
                                                          static_cast<int>(I) % kTokens + 1>...};
    }
    (std::make_index_sequence<kGroups * kTokens>{});
    return kTable.f[(num_groups - 1) * kTokens + num_rows - 1];
  }

  /// Few rows: x is read where it lies.
  static void stream(const Products& p, const WorkItem& item) {
    alignas(64) float acc[Tiles::kStreamRows * kStreamPanelRows];
    const Bf16* x = x_row<Bf16>(p, item.matrix, item.row_begin, 0);
    const int64_t rows = item.row_end - item.row_begin;
    const Stream f = stream_of(rows);
    for (int64_t g = item.group_begin; g < item.group_end;) {
      const int num_groups = f(p, item.matrix * p.groups + g, item.group_end - g, x, acc);
      store_block(p, item.matrix, g, num_groups, item.row_begin, rows, acc, kStreamPanelRows);
      g += num_groups;
    }
  }

  using Stream = int (*)(const Products&, int64_t group, int64_t left, const Bf16* x, float* acc);

  static Stream stream_of(int64_t rows) {
    static constexpr auto kTable = []<size_t... I>(std::index_sequence<I...>) {
      return Table<Stream, sizeof...(I)>{Tiles::template stream<static_cast<int>(I) + 1>...};
    }
    (std::make_index_sequence<Tiles::kStreamRows>{});
    return kTable.f[rows - 1];
  }

  /// acc [rows][acc_stride] to rows t0 .. of y, columns 16g .. . Columns past n are not written.
  static void store_block(const Products& p,
                          int64_t m,
                          int64_t g,
                          int num_groups,
                          int64_t t0,
                          int64_t rows,
                          const float* acc,
                          int64_t acc_stride) {
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t at = p.y_begin(m) + (t0 + t) * p.y_row_stride;
      for (int i = 0; i < num_groups; ++i) {
        const int64_t n0 = (g + i) * 16;
        float factor = 1.0f;
        if constexpr (Tiles::kHasGlobal) factor = p.global[m * p.groups + g + i];
        const int64_t count = p.n - n0 < 16 ? p.n - n0 : 16;
        store_group(p, at + n0, count, factor, acc + t * acc_stride + i * 16);
      }
    }
  }

  static void store_group(
      const Products& p, int64_t at, int64_t count, float factor, const float* acc) {
    for (int64_t r = 0; r < count; r += V::kWidth) {
      typename V::F32 value = V::load(acc + r);
      if constexpr (Tiles::kHasGlobal) value = V::mul(value, V::splat(factor));
      const int64_t left = count - r < V::kWidth ? count - r : V::kWidth;
      if (p.y_type == ElementType::kBf16) {
        V::store_first(static_cast<Bf16*>(p.y) + at + r, value, left);
      } else {
        V::store_first(static_cast<float*>(p.y) + at + r, value, left);
      }
    }
  }
};

}  // namespace fathom
