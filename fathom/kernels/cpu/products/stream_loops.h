// The loops around the inner products of AVX-512. Weights are decoded in registers, in passes:
//
//   rows of x (at most kBlockRows)
//     row groups (kGroups side by side)
//       columns (kPassK)            all of them where one pass is enough
//         passes of at most kRows rows of x
//
// Up to kRows rows are one pass, which reads the weights once from front to back: decode. More take
// several over the same weights, which the second-level cache then holds; between blocks of columns
// the accumulators lie in memory as float32, which changes no bit of them. (Decoding into a buffer
// first, and copying x beside it, was measured slower for every format and number of rows.)
//
// A Tiles type has
//   kGroups, kRows          largest block of row groups and of rows of x of one pass
//   kBlockRows, kPassK      as above; kPassK is a multiple of 128
//   kUnit                   what k must be a multiple of; shorter rows of x are copied and padded
//   pass<G, T>              one pass, see Pass
//   kHasGlobal              results are multiplied by the global scale of their group
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "fathom/kernels/cpu/products/product_rows.h"

namespace fathom {

/// T rows of x times G groups, over columns that begin at k0 and are `columns` many.
struct Pass {
  const Products& p;
  int64_t group;  ///< first of G consecutive groups, counted through all matrices
  int64_t k0;
  int64_t columns;  ///< a multiple of kUnit
  const Bf16* x;    ///< row 0, column k0
  int64_t x_stride;
  float* acc;  ///< [T][kAccStride], continued unless k0 is 0

  /// Passes over the same weights: this one, and how many. The first finds them in memory.
  int64_t index;
  int64_t count;
};

inline constexpr int64_t kAccStride = 64;  // four groups

template <class Tiles>
struct StreamLoops {
  using V = simd::Native;
  using PassFunction = void (*)(const Pass&);

  static_assert(Tiles::kGroups * 16 <= kAccStride, "a row of accumulators");
  static_assert(Tiles::kBlockRows <= kRowBlock, "see product_scratch_bytes");
  static_assert(Tiles::kPassK % 128 == 0, "scales of fp8 begin with a block of columns");

  /// Rows of x as passes read them.
  struct Rows {
    const Bf16* x;
    int64_t stride;
    int64_t k;  // padded
    int64_t count;
  };

  static void run(const Products& p, const WorkItem& item, void* memory) {
    auto* acc = static_cast<float*>(memory);  // [kBlockRows][kAccStride]
    auto* copies = reinterpret_cast<Bf16*>(acc + kRowBlock * kAccStride);
    const bool in_place = p.k % Tiles::kUnit == 0;
    const int64_t block = in_place ? Tiles::kBlockRows : kPaddedRows;
    for (int64_t t0 = item.row_begin; t0 < item.row_end; t0 += block) {
      const int64_t count = item.row_end - t0 < block ? item.row_end - t0 : block;
      const Rows rows = in_place
                            ? Rows{x_row<Bf16>(p, item.matrix, t0, 0), p.x_row_stride, p.k, count}
                            : copy_rows(p, item.matrix, t0, count, copies);
      for (int64_t g = item.group_begin; g < item.group_end; g += Tiles::kGroups) {
        const int64_t left = item.group_end - g;
        const int64_t num_groups = left < Tiles::kGroups ? left : Tiles::kGroups;
        multiply_groups(p, item.matrix * p.groups + g, num_groups, rows, acc);
        ResultWriter<V, Tiles::kHasGlobal>::store_block(p, item.matrix, g, num_groups, t0, count,
                                                        acc, kAccStride);
      }
    }
  }

 private:
  static void multiply_groups(
      const Products& p, int64_t group, int64_t num_groups, const Rows& rows, float* acc) {
    const int64_t passes = (rows.count + Tiles::kRows - 1) / Tiles::kRows;
    const int64_t step = passes == 1 || rows.k == 0 ? rows.k + 1 : Tiles::kPassK;
    for (int64_t k0 = 0; k0 == 0 || k0 < rows.k; k0 += step) {
      const int64_t columns = rows.k - k0 < step ? rows.k - k0 : step;
      for (int64_t i = 0, t = 0; i < passes; ++i) {
        // As even as they can be: 13 rows are 5 + 4 + 4, not 6 + 6 + 1.
        const int64_t count = (rows.count - t + passes - i - 1) / (passes - i);
        pass_of(num_groups, count)({.p = p,
                                    .group = group,
                                    .k0 = k0,
                                    .columns = columns,
                                    .x = rows.x + t * rows.stride + k0,
                                    .x_stride = rows.stride,
                                    .acc = acc + t * kAccStride,
                                    .index = i,
                                    .count = passes});
        t += count;
      }
    }
  }

  /// Rows with zeros behind them, up to whole units.
  static Rows copy_rows(const Products& p, int64_t m, int64_t t0, int64_t count, Bf16* out) {
    const int64_t k = (p.k + Tiles::kUnit - 1) / Tiles::kUnit * Tiles::kUnit;
    for (int64_t t = 0; t < count; ++t) {
      std::memcpy(out + t * k, x_row<Bf16>(p, m, t0 + t, 0),
                  static_cast<size_t>(p.k) * sizeof(Bf16));
      std::memset(out + t * k + p.k, 0, static_cast<size_t>(k - p.k) * sizeof(Bf16));
    }
    return {out, k, k, count};
  }

  static PassFunction pass_of(int64_t num_groups, int64_t rows) {
    constexpr int kRows = Tiles::kRows;
    static constexpr auto kTable = []<size_t... I>(std::index_sequence<I...>) {
      return FunctionTable<PassFunction, Tiles::kGroups * kRows>{
          Tiles::template pass<static_cast<int>(I) / kRows + 1,
                               static_cast<int>(I) % kRows + 1>...};
    }
    (std::make_index_sequence<Tiles::kGroups * kRows>{});
    return kTable.f[(num_groups - 1) * kRows + rows - 1];
  }
};

}  // namespace fathom
