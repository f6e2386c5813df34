// The rotation back as one forth: by a row of the table with sines of the other sign.
#pragma once

#include <cstdint>

namespace fathom {

/// back[0:R] = c_0 .. c_{R/2-1} -s_0 .. -s_{R/2-1} of a row c_0 .. s_0 .. of the table. Static, so
/// that files compiled for different instruction sets never share one copy of its code.
[[maybe_unused]] static void turn_back(const float* table_row, int64_t R, float* back) {
  for (int64_t i = 0; i < R / 2; ++i) {
    back[i] = table_row[i];
    back[R / 2 + i] = -table_row[R / 2 + i];
  }
}

}  // namespace fathom
