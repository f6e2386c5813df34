// The positions of tokens, shared by the kernels that rotate. Static, so that files compiled for
// different instruction sets never share one copy of its code.
#pragma once

#include "fathom/base/status.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// Row of the table for token t.
[[maybe_unused]] static int64_t position_of(const View& positions, int64_t t) {
  return positions.format == Format::kI32 ? positions.as<int32_t>()[t] : positions.as<int64_t>()[t];
}

/// InvalidArgument unless every position is a row of the table; passes when there is no data.
Status check_positions(const View& positions, int64_t table_rows);

}  // namespace fathom
