// When requests are sent.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace fathom::serve {

struct ArrivalOptions {
  double rate = std::numeric_limits<double>::infinity();  ///< requests a second; infinity: at once
  /// Shape of the gamma distribution of the gaps: 1 is a Poisson process, below come bursts, above
  /// it becomes regular; infinity: every gap the same.
  double burstiness = 1;
  uint64_t seed = 0;
};

/// Nanoseconds from the start, ascending. Stretched so that the last comes at count / rate, as
/// `vllm bench serve` does: runs of different seeds offer the same load.
std::vector<int64_t> arrival_times_ns(int64_t count, const ArrivalOptions& options);

}  // namespace fathom::serve
