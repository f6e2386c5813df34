// Quantised activations: a loop that reads bf16, float32 or int8 with 64-byte rows finds them
// decoded in the workspace, a limited number of rows at a time, so that the workspace of a prefill
// does not grow with its tokens. A decoded row is
//
//   values, zeros up to 64 bytes | its scales, one a block, or the offset of its integer sums
//
// Decoding is exact where values become bf16 or int8: codes without their scales (E4M3, E5M2, int8)
// or E2M1 times an E4M3 scale, which has six significant bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/cpu/products/products.h"
#include "fathom/kernels/cpu/products/run_products.h"

namespace fathom {

/// Bytes of decoded rows at once, beyond which rows are taken in turn; and the fewest and most rows
/// of each matrix that are.
inline constexpr int64_t kDecodedBytes = 16 << 20;
inline constexpr int64_t kFewestDecodedRows = 64;
inline constexpr int64_t kMostDecodedRows = 512;

/// How a decoded row lies in memory.
struct DecodedRow {
  int64_t element_bytes = 0;
  int64_t scales_at = 0;  ///< elements in front of its scales
  int64_t bytes = 0;      ///< of the whole row, a multiple of 64

  /// k elements and `num_scales` 4-byte scales behind them.
  static DecodedRow of(int64_t element_bytes, int64_t k, int64_t num_scales) {
    const int64_t values = align_up<int64_t>(k * element_bytes, 64);
    return {element_bytes, values / element_bytes, align_up<int64_t>(values + num_scales * 4, 64)};
  }
};

/// Rows of each matrix that are decoded at once.
inline int64_t decoded_rows_at_once(int64_t matrices, int64_t rows, const DecodedRow& row) {
  const int64_t fitting = kDecodedBytes / std::max<int64_t>(1, matrices * row.bytes);
  return std::min(rows, std::clamp(fitting, kFewestDecodedRows, kMostDecodedRows));
}

/// Bytes of workspace that decoded rows take; a multiple of 64.
inline int64_t decoded_workspace(int64_t matrices, int64_t rows, const DecodedRow& row) {
  return matrices * decoded_rows_at_once(matrices, rows, row) * row.bytes;
}

/// Runs `p` with rows of x decoded by decode(m, t, out): row t of matrix m, zeros included, to
/// row.bytes at `out`. p has everything but where x lies: x_type and k are those of decoded rows.
template <class Decode>
Status run_decoded(
    Exec& ex, const Products& p, const DecodedRow& row, ProductLoop loop, Decode&& decode) {
  const int64_t at_once = decoded_rows_at_once(p.num_matrices, p.rows, row);
  auto* const decoded = static_cast<std::byte*>(ex.workspace);
  void* const whole = ex.workspace;
  ex.workspace = decoded + decoded_workspace(p.num_matrices, p.rows, row);
  const int64_t y_bytes = p.y_type == ElementType::kF32 ? 4 : 2;
  Status status;
  for (int64_t t0 = 0; t0 < p.rows && status.ok(); t0 += at_once) {
    const int64_t count = std::min(at_once, p.rows - t0);
    for_rows(ex, p.num_matrices * count, row.bytes, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        decode(i / count, t0 + i % count, decoded + i * row.bytes);
    });
    Products part = p;
    part.rows = count;
    part.x = decoded;
    part.x_row_stride = row.bytes / row.element_bytes;
    part.x_matrix_stride = count * part.x_row_stride;
    part.x_scales_at = row.scales_at;
    part.y = static_cast<std::byte*>(p.y) + t0 * p.y_row_stride * y_bytes;
    ResultScaling scaling;
    if (p.scaling != nullptr) {
      scaling = *p.scaling;
      if (scaling.row_scale != nullptr) scaling.row_scale += t0;
      if (scaling.row_shift != nullptr) scaling.row_shift += t0;
      part.scaling = &scaling;
    }
    status = run_products(ex, part, loop);
  }
  ex.workspace = whole;
  return status;
}

/// Parts of the workspace in the order in which they are taken, each aligned to 64 bytes. With null
/// memory it counts.
class WorkspaceCut {
 public:
  explicit WorkspaceCut(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <class T>
  T* take(int64_t count) {
    T* out = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += align_up<int64_t>(count * static_cast<int64_t>(sizeof(T)), 64);
    return out;
  }

  int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  int64_t bytes_ = 0;
};

/// Elements of a column array of ResultScaling.
inline int64_t padded_columns(int64_t n) {
  return align_up<int64_t>(n, 16);
}

/// A scale, shift or bias of each of n columns (f32, bf16 or f16) as padded float32, in
/// padded_columns(n) elements at `memory`; null where `v` is absent.
const float* column_array(const View& v, int64_t n, float* memory);

/// A scale of each of the rows (f32 or f16) as float32, in as many elements at `memory`.
const float* row_array(const View& v, int64_t rows, float* memory);

/// Runs `p` with x of E4M3 or E5M2 codes, [T, K] or [T, H, K] as p was made, decoded without scales
/// to `type`: bf16, k padded to whole quads, or float32. x_format: of the codes.
Status run_fp8_codes(
    Exec& ex, const Products& p, Format x_format, ProductLoop loop, ElementType type);

/// Workspace of run_fp8_codes beside the products'.
int64_t fp8_codes_workspace(int64_t matrices, int64_t rows, int64_t k);

/// The bf16 of E4M3 or E5M2 codes, which is exact, and zeros up to `padded` values.
void decode_to_bf16(Format format, const uint8_t* codes, int64_t k, int64_t padded, void* out);

/// Their float32.
void decode_to_f32(Format format, const uint8_t* codes, int64_t k, float* out);

}  // namespace fathom
