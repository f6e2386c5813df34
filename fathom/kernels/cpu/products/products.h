// How a call of any product kernel is run: the call becomes a list of matrix products that share a
// stack of weights, the list is cut into work items by arithmetic on the number of threads, and a
// loop written for one instruction set does an item.
//
// Everything here is plain data, because the loops are compiled for instruction sets that the rest
// of the program must not assume: no inline code of other modules may be emitted in their files.
#pragma once

#include <cstdint>

#include "fathom/kernels/cpu/products/weight_source.h"

namespace fathom {

enum class ElementType : uint8_t { kBf16, kF32, kF16 };

/// What becomes of a sum before it is rounded to the format of y, in this order and in float32:
///
///   (sum * (factor * row_scale[t])) * col_scale[n]        each only where it is given
///   - row_shift[t] * col_shift[n]                         fused
///   + bias[n]
///
/// Rows are those of the call, columns those of one matrix. Column arrays are padded to whole
/// groups of 16.
struct ResultScaling {
  float factor = 1.0f;
  const float* row_scale = nullptr;
  const float* col_scale = nullptr;
  const float* row_shift = nullptr;
  const float* col_shift = nullptr;
  const float* bias = nullptr;
};

/// Products y_m = x_m w_m^T of matrices m = 0 .. num_matrices-1 over one stack of weights [n, k].
///
/// Matrix m takes num_rows(m) rows of x and y from first_row(m) on: those that `offsets` gives, or,
/// without offsets, `rows` rows that lie at m * matrix stride (heads).
struct Products {
  int64_t num_matrices = 1;
  int64_t rows = 0;  ///< of every matrix; with offsets: of all together
  int64_t n = 0;
  int64_t k = 0;
  int64_t groups = 0;                ///< of 16 rows of w, the last of which may be partial
  const int32_t* offsets = nullptr;  ///< [num_matrices + 1] or null

  // Activations and results; strides in elements.
  const void* x = nullptr;
  void* y = nullptr;
  int64_t x_row_stride = 0, x_matrix_stride = 0;
  int64_t y_row_stride = 0, y_matrix_stride = 0;
  ElementType x_type = ElementType::kBf16;
  ElementType y_type = ElementType::kBf16;

  // Weights in layout kRows16, as formats/layout/tile_layout.h has them.
  const uint8_t* tiles = nullptr;
  int64_t group_bytes = 0;
  const float* scales = nullptr;  ///< fp8: [groups][group_scales] of each matrix
  int64_t group_scales = 0;
  const float* global = nullptr;  ///< nvfp4: [groups] of each matrix

  // Weights in layout kRowMajor: row after row, matrix after matrix.
  const uint8_t* codes = nullptr;
  int64_t row_bytes = 0;
  const float* block_scales = nullptr;  ///< fp8: [matrix][ceil(n/128)][ceil(k/128)]

  /// Elements from the start of a row of x to its own scales, which lie behind its values where x
  /// was decoded from a quantised format (decoded_rows.h).
  int64_t x_scales_at = 0;
  const ResultScaling* scaling = nullptr;  ///< null: sums are results

  WeightSource weight;  ///< of loops that take neither tiles nor codes; the portable one: QuantView
  /// Row n of matrix m as float32, of weights that no QuantView describes; null for the others.
  void (*decode_weight_row)(const Products&, int64_t m, int64_t n, float* out) = nullptr;

  // Always inline: a copy of their own would be compiled for whatever instruction set its file has.
  [[gnu::always_inline]] int64_t first_row(int64_t m) const {
    return offsets != nullptr ? offsets[m] : 0;
  }

  [[gnu::always_inline]] int64_t num_rows(int64_t m) const {
    return offsets != nullptr ? offsets[m + 1] - offsets[m] : rows;
  }

  /// Elements in front of row 0 of matrix m.
  [[gnu::always_inline]] int64_t x_begin(int64_t m) const {
    return m * x_matrix_stride + first_row(m) * x_row_stride;
  }

  [[gnu::always_inline]] int64_t y_begin(int64_t m) const {
    return m * y_matrix_stride + first_row(m) * y_row_stride;
  }
};

/// Row groups [group_begin, group_end) of matrix `matrix` times its rows [row_begin, row_end),
/// counted from the first row of the matrix. Neither range is empty.
struct WorkItem {
  int64_t matrix;
  int64_t group_begin, group_end;
  int64_t row_begin, row_end;
};

/// Does one item. `scratch` has product_scratch_bytes, aligned to 64 bytes, and belongs to the
/// calling thread.
using ProductLoop = void (*)(const Products&, const WorkItem&, void* scratch);

/// Rows of x that the loops work on at once, at most.
inline constexpr int64_t kRowBlock = 256;

/// Rows of x that are copied at once where k does not suit the instruction set, and what their
/// copies are padded to at most.
inline constexpr int64_t kPaddedRows = 16;
inline constexpr int64_t kPaddedK = 64;

/// Columns of x and w that the portable and AVX2 loops hold in the first-level cache at once, and
/// bytes of such a piece of a row group as float32, with its scales.
inline constexpr int64_t kChunkK = 256;
inline constexpr int64_t kPanelBytes = 18 << 10;

/// What tile products work on at once (tile_loops.h): rows of x, groups, columns. Rows, so that
/// each decoded weight is used often; groups, so that each row of x that is read is; columns, so
/// that tiles of two groups and two rows of tiles of x lie in the first-level cache. The panel
/// holds decoded weights, the spare tiles sums of a block.
inline constexpr int64_t kTileBlockRows = 512;
inline constexpr int64_t kTileBlockGroups = 32;
inline constexpr int64_t kTileChunkK = 256;
inline constexpr int64_t kTilePanelBytes = kTileBlockGroups * kTileChunkK * 32;
inline constexpr int64_t kTileSpareBytes = 8 << 10;

/// Scratch of one thread for products of at most `rows` rows of k columns, for every loop; a
/// multiple of 64.
int64_t product_scratch_bytes(int64_t rows, int64_t k);

// The loops by instruction set and weight format. x is bf16 for amx and avx512; layout kRows16.
void bf16_products_amx(const Products& p, const WorkItem& item, void* scratch);
void fp8_products_amx(const Products& p, const WorkItem& item, void* scratch);
void nvfp4_products_amx(const Products& p, const WorkItem& item, void* scratch);
void mxfp8_products_amx(const Products& p, const WorkItem& item, void* scratch);
void bf16_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void fp8_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void nvfp4_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void mxfp8_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void bf16_products_avx2(const Products& p, const WorkItem& item, void* scratch);
void fp8_products_avx2(const Products& p, const WorkItem& item, void* scratch);
void nvfp4_products_avx2(const Products& p, const WorkItem& item, void* scratch);
void mxfp8_products_avx2(const Products& p, const WorkItem& item, void* scratch);

// The same for x decoded from E4M3 with a scale per 128 k (x_scales_at).
void fp8_scaled_x_products_avx512(const Products& p, const WorkItem& item, void* scratch);

// Layout kRowMajor, brought into tiles as it is read: bf16; E4M3 with block scales, with x as it is
// or decoded with scales; E4M3 and E5M2 without scales. k is a multiple of 4, or x is decoded.
void bf16_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void fp8_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void fp8_row_major_scaled_x_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void e4m3_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch);
void e5m2_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch);

/// Writes the sum of row t and column n of matrix m to y, scaled and rounded; for portable loops.
void store_result(const Products& p, int64_t m, int64_t t, int64_t n, float sum);

/// Every format, layout and element type.
void products_portable(const Products& p, const WorkItem& item, void* scratch);

}  // namespace fathom
