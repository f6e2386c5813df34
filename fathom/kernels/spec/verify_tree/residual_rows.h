// The residual of a row, for each instruction set.
#pragma once

#include <cstdint>

namespace fathom {

/// out[i] = max(target[i] - draft[i], 0), where NaN and negative operands count as 0.
using ResidualRow = void (*)(const float* target, const float* draft, float* out, int64_t count);

namespace avx512 {
void residual_row(const float* target, const float* draft, float* out, int64_t count);
}  // namespace avx512

}  // namespace fathom
