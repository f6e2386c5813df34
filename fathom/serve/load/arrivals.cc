#include "fathom/serve/load/arrivals.h"

#include <cmath>

#include "fathom/serve/load/variates.h"

namespace fathom::serve {

std::vector<int64_t> arrival_times_ns(int64_t count, const ArrivalOptions& options) {
  std::vector<int64_t> times(static_cast<size_t>(count), 0);
  if (std::isinf(options.rate) || times.empty()) return times;
  Rng rng(options.seed);
  std::vector<double> sums;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += std::isinf(options.burstiness) ? 1.0 : gamma_double(rng, options.burstiness);
    sums.push_back(sum);
  }
  const double last_ns = static_cast<double>(count) / options.rate * 1e9;
  // Gaps so small that all of them are zero leave nothing to stretch.
  const double stretch = sum > 0 ? last_ns / sum : 0;
  for (size_t i = 0; i < times.size(); ++i)
    times[i] = std::llround(sums[i] * stretch);
  return times;
}

}  // namespace fathom::serve
