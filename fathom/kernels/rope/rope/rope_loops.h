// The rotation of one head, shared by the kernels that rotate.
#pragma once

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/rope/rope/rope.h"

namespace fathom {

/// What happens to a rotated value before it is rounded.
struct Unscaled {
  float operator()(float x) const { return x; }
};

struct DividedBy {
  float scale;

  float operator()(float x) const { return x / scale; }
};

struct MultipliedBy {
  float scale;

  float operator()(float x) const { return x * scale; }
};

/// out = convert(finish(rotation of the R values at `in`)). table_row: c_0.. then s_0.. (R/2 each).
/// out may be in. float32 inside; products and sums are rounded to Term.
template <class Term = float, class In, class Out, class Table, class Finish = Unscaled>
void rotate_head(const In* in,
                 Out* out,
                 const Table* table_row,
                 int64_t R,
                 RopeStyle style,
                 Finish finish = {}) {
  const auto term = [](float x) { return to_float(from_float<Term>(x)); };
  const int64_t num_pairs = R / 2;
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t first = style == RopeStyle::kInterleaved ? 2 * i : i;
    const int64_t second = style == RopeStyle::kInterleaved ? 2 * i + 1 : num_pairs + i;
    const float a = to_float(in[first]);
    const float b = to_float(in[second]);
    const float c = to_float(table_row[i]);
    const float s = to_float(table_row[num_pairs + i]);
    out[first] = from_float<Out>(finish(term(a * c) - term(b * s)));
    out[second] = from_float<Out>(finish(term(b * c) + term(a * s)));
  }
}

}  // namespace fathom
