// Quantised activations of the grouped products: rows sorted by expert, decoded a piece at a time
// into the workspace (cpu/products/decoded_rows.h), so that the workspace of a prefill does not
// grow with its tokens. The pieces never show in the result.
#pragma once

#include "fathom/kernels/cpu/products/decoded_rows.h"

namespace fathom {

/// How a run cuts the rows of a call over threads: run_products, or a schedule of its own.
using RunProducts = Status (*)(Exec& ex, const Products& p, ProductLoop loop);

/// Bytes of workspace of run_grouped_decoded beside the products'; a multiple of 64.
inline int64_t grouped_workspace(int64_t matrices, int64_t rows, const DecodedRow& row) {
  return decoded_workspace(1, rows, row) + align_up<int64_t>((matrices + 1) * 4, 64);
}

/// Where a piece that begins at row `begin` ends: at the last expert's end within reach, where that
/// is not too near, so that few experts' weights are read for two pieces.
inline int64_t piece_end(const Products& p, int64_t begin, int64_t at_once) {
  const int64_t most = std::min(begin + at_once, p.rows);
  int64_t end = begin;
  for (int64_t m = 0; m <= p.num_matrices; ++m) {
    if (p.offsets[m] <= most) end = std::max<int64_t>(end, p.offsets[m]);
  }
  return end >= begin + at_once / 2 ? end : most;
}

/// Runs `p`, which has offsets, with rows of x decoded by decode(r, out): row r of the call, zeros
/// included, to row.bytes at `out`. x_type and k of p are those of decoded rows; its x is not read.
/// Row scales of p.scaling are not supported.
template <class Decode>
Status run_grouped_decoded(Exec& ex,
                           const Products& p,
                           const DecodedRow& row,
                           ProductLoop loop,
                           Decode&& decode,
                           RunProducts run = run_products) {
  const int64_t at_once = decoded_rows_at_once(1, p.rows, row);
  void* const whole = ex.workspace;
  WorkspaceCut cut(whole);
  auto* const decoded = cut.take<std::byte>(decoded_workspace(1, p.rows, row));
  auto* const offsets = cut.take<int32_t>(p.num_matrices + 1);
  ex.workspace = static_cast<std::byte*>(whole) + cut.bytes();
  const int64_t last = p.offsets[p.num_matrices];
  Status status;
  for (int64_t begin = p.offsets[0]; begin < last && status.ok();) {
    const int64_t end = std::min(piece_end(p, begin, at_once), last);
    for_rows(ex, end - begin, row.bytes, [&](int64_t first, int64_t past) {
      for (int64_t i = first; i < past; ++i)
        decode(begin + i, decoded + i * row.bytes);
    });
    for (int64_t m = 0; m <= p.num_matrices; ++m) {
      offsets[m] = static_cast<int32_t>(std::clamp<int64_t>(p.offsets[m], begin, end) - begin);
    }
    Products piece = p;
    piece.rows = end - begin;
    piece.offsets = offsets;
    piece.x = decoded;
    piece.x_row_stride = row.bytes / row.element_bytes;
    piece.x_scales_at = row.scales_at;
    const int64_t y_bytes = p.y_type == ElementType::kF32 ? 4 : 2;
    piece.y = static_cast<std::byte*>(p.y) + begin * p.y_row_stride * y_bytes;
    status = run(ex, piece, loop);
    begin = end;
  }
  ex.workspace = whole;
  return status;
}

}  // namespace fathom
