// Times a function that can be called again and again: warm up until the clock has settled, then
// measure until there is enough to call a median.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "fathom/base/status.h"
#include "fathom/os/clock.h"

namespace fathom {

struct TimerOptions {
  int64_t min_reps = 50;        ///< samples, unless max_time_s ends the measurement first
  double min_time_s = 0.2;      ///< and at least so long
  double max_time_s = 2.0;      ///< but no longer, once there are 3 samples
  double max_warm_up_s = 1.0;   ///< warming up ends here even if the clock has not settled, and
                                ///< at five times min_time_s where that is earlier
  double min_sample_us = 20.0;  ///< shorter calls are timed in groups, so that the clock is not
};

/// Microseconds of one call.
struct Timing {
  int64_t reps = 0;   ///< samples taken
  int64_t group = 1;  ///< calls in a sample; their mean is the sample
  double median_us = 0;
  double mean_us = 0;
  double min_us = 0;
  double max_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  bool settled = false;  ///< two medians of the warm-up agreed within 1 %, or one call was as long
                         ///< as the warm-up may be

  /// (p90 - p10) / median above 10 %: the machine was busy with something else.
  bool unstable() const { return p90_us - p10_us > 0.1 * median_us; }
};

/// Calls run(0), run(1), ... The number lets the caller walk through copies of its data. The first
/// error ends it. `before_sample`, if there is one, runs before each sample and is not timed; a
/// sample is then one call.
Result<Timing> time_calls(const std::function<Status(int64_t call)>& run,
                          const TimerOptions& options,
                          const Clock& clock,
                          const std::function<void()>& before_sample = nullptr);

/// The q-quantile (0 to 1) of sorted values, linear between neighbours. Not empty.
double quantile(std::span<const double> sorted, double q);

}  // namespace fathom
