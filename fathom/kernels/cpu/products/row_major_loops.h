// Products of AVX-512 with weights that lie row-major, as in checkpoints and reference calls.
// Pieces of up to four groups of sixteen rows are brought into the tiles of kRows16 in the
// first-level cache, and the inner products of that layout run on them:
//
//   rows of x (at most kBlockRows)
//     row groups (kGroups side by side)
//       columns (at most 256 bytes of every row): transpose, then passes of kRows rows of x
//
// Results have the bits of the same matrix in kRows16: a tile is the same, and accumulators between
// pieces lie in memory as they are.
//
// A Tiles type has
//   kRows                   rows of x of one pass, at most
//   kElementBytes           of a value of x
//   kPieceK                 columns of a piece: a multiple of 128 (scales begin with a block)
//   kPieceTileBytes         of their tiles
//   load or load_groups     a piece of one group, or of several, into the panel
//   pass<G, T>              one pass, see PanelPass
//   finish                  sums to float32
#pragma once

#include <cstdint>
#include <utility>

#include "fathom/kernels/cpu/products/product_rows.h"
#include "fathom/kernels/cpu/products/stream_loops.h"

namespace fathom {

inline constexpr int64_t kPanelGroups = 4;
inline constexpr int64_t kPieceBytes = 4096;  // of one group: 256 bytes of sixteen rows
inline constexpr int64_t kPieceScales = 2;    // a scale for 128 columns, 256 columns at most

/// Tiles and block scales of kPanelGroups groups.
struct WeightPanel {
  alignas(64) uint8_t tiles[kPanelGroups][kPieceBytes];
  float scales[kPanelGroups][16];  // [kPieceScales] used
};

/// T rows of x times G groups, over the columns of a panel.
struct PanelPass {
  const WeightPanel& panel;
  int64_t columns;        ///< padded to whole units of the tiles
  const uint8_t* x;       ///< row 0, first column
  int64_t x_stride;       ///< bytes
  const float* x_scales;  ///< of row 0 at the first column; one for 128 columns
  float* acc;             ///< [T][kAccStride], continued unless `first`
  bool first;
};

/// Sixteen vectors of sixteen 32-bit lanes: lane j of vector i becomes lane i of vector j.
inline __attribute__((always_inline)) void transpose_lanes(__m512i (&v)[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // 128-bit lane L of b[4i+j] now holds column 4L+j of rows 4i .. 4i+3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i even01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
    const __m512i odd01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xDD);
    const __m512i even23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
    const __m512i odd23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xDD);
    v[j] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    v[4 + j] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    v[8 + j] = _mm512_shuffle_i32x4(even01, even23, 0xDD);
    v[12 + j] = _mm512_shuffle_i32x4(odd01, odd23, 0xDD);
  }
}

/// Bytes that the pieces of the groups of a panel are asked for ahead of their use: from the same
/// stream of `stream_bytes`, or, past its end, from the one that takes its place in the next panel,
/// `streams` further on.
inline int64_t ask_ahead(int64_t position, int64_t ahead, int64_t stream_bytes, int64_t streams) {
  return position + ahead < stream_bytes ? ahead : ahead + (streams - 1) * stream_bytes;
}

/// Bytes [begin, begin + bytes) of rows 0 .. num_rows-1 of at most sixteen, as vectors of 32-bit
/// lanes: calls store(i, v), lane r of v bytes 4i .. 4i+3 of row r from `begin` on, zeros where
/// there is nothing. i goes up to whole blocks of 16. Asks for the bytes that will be wanted next.
template <class Store>
inline __attribute__((always_inline)) void load_rows(const uint8_t* rows,
                                                     int64_t row_bytes,
                                                     int64_t num_rows,
                                                     int64_t begin,
                                                     int64_t bytes,
                                                     Store&& store) {
  constexpr int64_t kAhead = 256;
  for (int64_t at = 0; at < bytes; at += 64) {
    const int64_t left = bytes - at;
    const int64_t ahead = ask_ahead(begin + at, kAhead, row_bytes, kPanelGroups * 16);
    const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    __m512i v[16];
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      const uint8_t* row = rows + r * row_bytes + begin + at;
      v[r] = _mm512_maskz_loadu_epi8(r < num_rows ? mask : __mmask64{0}, row);
      _mm_prefetch(row + ahead, _MM_HINT_T0);
    }
    transpose_lanes(v);
#pragma GCC unroll 16
    for (int64_t i = 0; i < 16; ++i)
      store(at / 4 + i, v[i]);
  }
}

/// The accumulators so far as vectors, float32 or integers; and back.
template <class Vector, int G, int T>
inline __attribute__((always_inline)) void load_panel_sums(const PanelPass& a,
                                                           Vector (&sum)[G][T]) {
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      sum[g][t] = a.first ? Vector{} : (Vector)_mm512_loadu_si512(a.acc + t * kAccStride + g * 16);
    }
  }
}

template <class Vector, int G, int T>
inline __attribute__((always_inline)) void store_panel_sums(const PanelPass& a,
                                                            const Vector (&sum)[G][T]) {
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
      _mm512_storeu_si512(a.acc + t * kAccStride + g * 16, (__m512i)sum[g][t]);
  }
}

template <class Tiles>
struct RowMajorLoops {
  using V = simd::Native;
  using PassFunction = void (*)(const PanelPass&);

  static constexpr int64_t kBlockRows = 64;
  static_assert(Tiles::kPieceTileBytes <= kPieceBytes, "a piece of a group");
  static_assert(kBlockRows * kAccStride * sizeof(float) + sizeof(WeightPanel) <=
                    kRowBlock * kAccStride * sizeof(float),
                "see product_scratch_bytes");

  static void run(const Products& p, const WorkItem& item, void* memory) {
    auto* acc = static_cast<float*>(memory);
    auto* panel = reinterpret_cast<WeightPanel*>(acc + kBlockRows * kAccStride);
    for (int64_t t0 = item.row_begin; t0 < item.row_end; t0 += kBlockRows) {
      const int64_t left = item.row_end - t0;
      const int64_t rows = left < kBlockRows ? left : kBlockRows;
      for (int64_t g = item.group_begin; g < item.group_end; g += kPanelGroups) {
        const int64_t groups_left = item.group_end - g;
        const int64_t num_groups = groups_left < kPanelGroups ? groups_left : kPanelGroups;
        multiply_groups(p, item.matrix, g, num_groups, t0, rows, *panel, acc);
        for (int64_t t = 0; t < rows; ++t)
          Tiles::finish(x_of(p, item.matrix, t0 + t), p, acc + t * kAccStride);
        ResultWriter<V, false>::store_block(p, item.matrix, g, num_groups, t0, rows, acc,
                                            kAccStride);
      }
    }
  }

 private:
  static const uint8_t* x_of(const Products& p, int64_t m, int64_t t) {
    return static_cast<const uint8_t*>(p.x) +
           (p.x_begin(m) + t * p.x_row_stride) * Tiles::kElementBytes;
  }

  static void multiply_groups(const Products& p,
                              int64_t m,
                              int64_t g,
                              int64_t num_groups,
                              int64_t t0,
                              int64_t rows,
                              WeightPanel& panel,
                              float* acc) {
    const int64_t passes = (rows + Tiles::kRows - 1) / Tiles::kRows;
    const int64_t stride = p.x_row_stride * Tiles::kElementBytes;
    for (int64_t k0 = 0; k0 == 0 || k0 < p.k; k0 += Tiles::kPieceK) {
      const int64_t columns = p.k - k0 < Tiles::kPieceK ? p.k - k0 : Tiles::kPieceK;
      load(p, m, g, num_groups, k0, columns, panel);
      for (int64_t i = 0, t = 0; i < passes; ++i) {
        const int64_t count = (rows - t + passes - i - 1) / (passes - i);
        const uint8_t* x = x_of(p, m, t0 + t);
        const auto* x_scales =
            reinterpret_cast<const float*>(x + p.x_scales_at * Tiles::kElementBytes) + k0 / 128;
        pass_of(num_groups, count)({.panel = panel,
                                    .columns = columns,
                                    .x = x + k0 * Tiles::kElementBytes,
                                    .x_stride = stride,
                                    .x_scales = x_scales,
                                    .acc = acc + t * kAccStride,
                                    .first = k0 == 0});
        t += count;
      }
    }
  }

  static void load(const Products& p,
                   int64_t m,
                   int64_t g,
                   int64_t num_groups,
                   int64_t k0,
                   int64_t columns,
                   WeightPanel& panel) {
    if constexpr (requires { &Tiles::load_groups; }) {
      Tiles::load_groups(p, g, num_groups, k0, columns, panel);
    } else {
      for (int64_t i = 0; i < num_groups; ++i)
        Tiles::load(p, m, g + i, k0, columns, panel.tiles[i], panel.scales[i]);
    }
  }

  static PassFunction pass_of(int64_t num_groups, int64_t rows) {
    constexpr int kRows = Tiles::kRows;
    constexpr int kSize = static_cast<int>(kPanelGroups) * kRows;
    static constexpr auto kTable = []<size_t... I>(std::index_sequence<I...>) {
      return FunctionTable<PassFunction, kSize>{
          Tiles::template pass<static_cast<int>(I) / kRows + 1,
                               static_cast<int>(I) % kRows + 1>...};
    }
    (std::make_index_sequence<kSize>{});
    return kTable.f[(num_groups - 1) * kRows + rows - 1];
  }
};

}  // namespace fathom
