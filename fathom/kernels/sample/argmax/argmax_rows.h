// The largest value of a piece of a row, for each instruction set; shared with sample/renorm.
#pragma once

#include <cstdint>

namespace fathom {

/// What a scan of a piece of a row found. An index counts from the beginning of the piece.
struct RowPeak {
  float max = -__builtin_inff();  ///< NaN left out
  int32_t index = 0;              ///< lowest of max; 0 if nothing is above -inf
  bool unusable = false;          ///< NaN or +inf was seen
};

RowPeak find_peak(const float* row, int64_t count);

namespace avx512 {
RowPeak find_peak(const float* row, int64_t count);
}  // namespace avx512

}  // namespace fathom
