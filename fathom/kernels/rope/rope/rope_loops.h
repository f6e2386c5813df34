// The rotation of one head, shared by the kernels that rotate.
#pragma once

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom {

/// out = convert(rotation of the R values at `in`, divided by scale). table_row: c_0.. then s_0..
/// (R/2 each). out may be in. float32 inside, one rounding.
template <class In, class Out>
void rotate_head(
    const In* in, Out* out, const float* table_row, int64_t R, RopeStyle style, float scale) {
  const int64_t num_pairs = R / 2;
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t first = style == RopeStyle::kInterleaved ? 2 * i : i;
    const int64_t second = style == RopeStyle::kInterleaved ? 2 * i + 1 : num_pairs + i;
    const float a = to_float(in[first]);
    const float b = to_float(in[second]);
    const float c = table_row[i];
    const float s = table_row[num_pairs + i];
    out[first] = from_float<Out>((a * c - b * s) / scale);
    out[second] = from_float<Out>((b * c + a * s) / scale);
  }
}

/// InvalidArgument unless every position is a row of the table; passes when there is no data.
Status check_positions(const View& positions, int64_t table_rows);

}  // namespace fathom
