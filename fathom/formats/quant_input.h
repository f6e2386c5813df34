// What quantisers ask of their input: its largest magnitude, and whether it can be quantised.
#pragma once

#include <cstdint>

#include "fathom/base/status.h"

namespace fathom {

/// max |x[i]| over i < count; 0 for none. NaN is skipped, as fmaxf does on every device.
float amax_of(const float* x, int64_t count);

/// Numerical if one of the weights [n, k], row-major, is infinite or NaN; names row, column, value.
Status check_weights_finite(const float* weights, int64_t n, int64_t k);

/// InvalidArgument unless k is a multiple of the block of `format_name`.
Status check_block_multiple(int64_t k, int64_t block, std::string_view format_name);

}  // namespace fathom
