// The order in which the reference's fused layers take their weights, and the way back to rows as a
// checkpoint has them: for bindings, which bring weights into our order once, when a model is
// loaded.
//
// A matrix [rows, k], k measured in bytes, goes through up to three steps:
//
//   interleaved   of a first product with I linear and I gate rows:
//                 r_0 .. r_{2I-1}  becomes  r_0, r_I, r_1, r_{I+1}, ..
//   shuffled      within every block of 16 or 32 rows; row i of a block becomes that of
//                   16 rows:  0, 8, 1, 9, 2, 10, .. 7, 15
//                   32 rows:  0, 8, 16, 24, 1, 9, 17, 25, .. 7, 15, 23, 31
//   block-major   [rows, k] becomes [k/128, rows, 128]
//
// Block scales of FP4 are interleaved and shuffled with their rows and then swizzled 128x4
// (formats/layout/scale_layout.h); those of FP8 are left alone.
// Source: FlashInfer, fused_moe (shuffle_matrix_a, convert_to_block_layout).
#pragma once

#include <cstdint>

#include "fathom/base/status.h"

namespace fathom {

/// What was done to a matrix.
struct ShuffledLayout {
  bool interleaved = false;
  int64_t shuffle_rows = 0;  ///< 16, 32, or 0 for none
  bool block_major = false;
};

/// The row of the shuffled matrix that holds row `row` of the plain one.
int64_t shuffled_row(const ShuffledLayout& layout, int64_t rows, int64_t row);

/// One matrix of `rows` rows of `row_bytes` bytes back to plain rows. `to` must not overlap `from`.
/// Errors: InvalidArgument if rows are no multiple of the block (of 2 if interleaved), row_bytes
/// are no multiple of 128 for block-major, or shuffle_rows is not 0, 16 or 32.
Status unshuffle_matrix(const ShuffledLayout& layout,
                        const uint8_t* from,
                        int64_t rows,
                        int64_t row_bytes,
                        uint8_t* to);

/// One-byte block scales, swizzled 128x4 after the rows were interleaved and shuffled, back to
/// linear [rows, num_scales]. Errors: as unshuffle_matrix; block_major does not apply.
Status unshuffle_scales(const ShuffledLayout& layout,
                        const uint8_t* from,
                        int64_t rows,
                        int64_t num_scales,
                        uint8_t* to);

}  // namespace fathom
