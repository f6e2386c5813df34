// Looking at the numbers of a tensor: what a recording with statistics keeps of each result.
#pragma once

#include "fathom/tensor/view.h"

namespace fathom {

/// Of the finite numbers of a tensor; all 0 if there are none.
struct TensorStatistics {
  double min = 0;
  double max = 0;
  double mean = 0;
  double l2 = 0;           ///< sqrt of the sum of squares
  int64_t non_finite = 0;  ///< infinities and NaN, which count in nothing else
};

/// Statistics of a dense view, summed in float64 in row-major order. Of a quantised format the
/// stored bytes are what is summed: they tell two results apart, no more.
TensorStatistics statistics_of(const View& v);

}  // namespace fathom
