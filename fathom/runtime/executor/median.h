// The median of measured times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fathom {

/// The upper median; `values` is not empty.
inline double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace fathom
