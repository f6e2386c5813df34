#include "fathom/kernels/moe/fused_moe/shuffled_weights.h"

#include <cstring>

#include "fathom/base/str_cat.h"
#include "fathom/formats/layout/scale_layout.h"

namespace fathom {
namespace {

constexpr int64_t kBlockBytes = 128;

Status check_rows(const ShuffledLayout& layout, int64_t rows) {
  if (layout.shuffle_rows != 0 && layout.shuffle_rows != 16 && layout.shuffle_rows != 32) {
    return invalid_argument(
        str_cat("rows are shuffled in blocks of ", layout.shuffle_rows, ", expected 0, 16 or 32"));
  }
  if (layout.interleaved && rows % 2 != 0) {
    return invalid_argument(str_cat("an interleaved matrix has ", rows,
                                    " rows, expected an even "
                                    "number"));
  }
  if (layout.shuffle_rows > 0 && rows % layout.shuffle_rows != 0) {
    return invalid_argument(str_cat("a matrix of ", rows, " rows is shuffled in blocks of ",
                                    layout.shuffle_rows, ", which do not fit"));
  }
  return {};
}

}  // namespace

int64_t shuffled_row(const ShuffledLayout& layout, int64_t rows, int64_t row) {
  if (layout.interleaved) {
    const int64_t half = rows / 2;
    row = row < half ? 2 * row : 2 * (row - half) + 1;
  }
  if (layout.shuffle_rows == 0) return row;
  // Row i of a block came from row (i % parts) * 8 + i / parts; this is the way there.
  const int64_t parts = layout.shuffle_rows / 8;
  const int64_t within = row % layout.shuffle_rows;
  return row - within + within % 8 * parts + within / 8;
}

Status unshuffle_matrix(const ShuffledLayout& layout,
                        const uint8_t* from,
                        int64_t rows,
                        int64_t row_bytes,
                        uint8_t* to) {
  FATHOM_TRY(check_rows(layout, rows));
  if (layout.block_major && row_bytes % kBlockBytes != 0) {
    return invalid_argument(str_cat("a block-major matrix has rows of ", row_bytes,
                                    " bytes, expected a multiple of ", kBlockBytes));
  }
  const int64_t piece = layout.block_major ? kBlockBytes : row_bytes;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t source = shuffled_row(layout, rows, r);
    for (int64_t at = 0; at < row_bytes; at += piece) {
      // Block at/128 of all rows lies before the next block of any.
      std::memcpy(to + r * row_bytes + at, from + at * rows + source * piece,
                  static_cast<size_t>(piece));
    }
  }
  return {};
}

Status unshuffle_scales(const ShuffledLayout& layout,
                        const uint8_t* from,
                        int64_t rows,
                        int64_t num_scales,
                        uint8_t* to) {
  FATHOM_TRY(check_rows(layout, rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t source = shuffled_row(layout, rows, r);
    for (int64_t k = 0; k < num_scales; ++k)
      to[r * num_scales + k] = from[swizzled_128x4_offset(source, k, num_scales)];
  }
  return {};
}

}  // namespace fathom
