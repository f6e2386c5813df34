// What the variants of this group share. Static, so that files compiled for different instruction
// sets never share one copy of its code.
#pragma once

#include "fathom/kernels/sparse/index_prepare/index_prepare.h"

namespace fathom {

/// The same memory with strides in bytes, for operands whose format the code does not name.
[[maybe_unused]] static View bytes_of(View v) {
  const int64_t bytes = element_bytes(v.format);
  for (int i = 0; i < v.rank; ++i)
    v.strides[static_cast<size_t>(i)] *= bytes;
  return v;
}

[[maybe_unused]] static IndexSteps steps_of(const IndexQuery::Args& a) {
  return {.width = a.q.dim(2),
          .rope_dim = a.table.dim(1),
          .style = a.style,
          .channels = a.channels,
          .transform = a.transform,
          .rounding = a.q.format};
}

[[maybe_unused]] static IndexSteps steps_of(const IndexKeyWrite::Args& a) {
  return {.width = a.k.dim(1),
          .rope_dim = a.table.dim(1),
          .style = a.style,
          .channels = a.channels,
          .transform = a.transform,
          .rounding = a.k.format};
}

/// Where head h of token t goes.
[[maybe_unused]] static IndexRowOut query_out(const IndexQuery::Args& a, int64_t t, int64_t h) {
  const View v = bytes_of(a.q_out);
  IndexRowOut out{.format = v.format};
  out.values = v.as<std::byte>() + t * v.stride(0) + h * v.stride(1);
  if (a.q_scales.present()) {
    out.group_scales = a.q_scales.row<Ue8m0>(t) + h * a.q_scales.stride(1);
  }
  return out;
}

namespace avx512 {
/// Tokens [begin, end) of a call whose operands have been checked.
void index_query_rows(const IndexQuery::Args& a, int64_t begin, int64_t end);
}  // namespace avx512

}  // namespace fathom
