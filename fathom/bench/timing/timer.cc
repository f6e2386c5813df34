#include "fathom/bench/timing/timer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "fathom/base/check.h"

namespace fathom {
namespace {

constexpr int64_t kLeastSamples = 3;
constexpr int64_t kWarmUpRound = 5;  // samples whose median is compared
constexpr double kSettledWithin = 0.01;
constexpr double kWarmUpTimes = 5;  // the warm-up takes at most so many times the measurement

/// Takes samples of `group` calls each.
class Sampler {
 public:
  Sampler(const std::function<Status(int64_t)>& run,
          const Clock& clock,
          const std::function<void()>& before_sample)
      : run_(run), clock_(clock), before_sample_(before_sample), begin_ns_(clock.now_ns()) {}

  /// Microseconds a call.
  Result<double> sample() {
    if (before_sample_) before_sample_();
    const int64_t start = clock_.now_ns();
    for (int64_t i = 0; i < group_; ++i)
      FATHOM_TRY(run_(calls_++));
    return static_cast<double>(clock_.now_ns() - start) * 1e-3 / static_cast<double>(group_);
  }

  /// Up to `count` samples, fewer if `until_s` passes first; at least one.
  Result<std::vector<double>> samples(int64_t count, double until_s) {
    std::vector<double> out;
    do {
      FATHOM_ASSIGN(const double us, sample());
      out.push_back(us);
    } while (static_cast<int64_t>(out.size()) < count && elapsed_s() < until_s);
    return out;
  }

  void set_group(int64_t group) { group_ = before_sample_ ? 1 : group; }

  int64_t group() const { return group_; }

  double elapsed_s() const { return static_cast<double>(clock_.now_ns() - begin_ns_) * 1e-9; }

  void restart_watch() { begin_ns_ = clock_.now_ns(); }

 private:
  const std::function<Status(int64_t)>& run_;
  const Clock& clock_;
  const std::function<void()>& before_sample_;
  int64_t begin_ns_;
  int64_t calls_ = 0;
  int64_t group_ = 1;
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

/// Runs until two medians in a row agree; returns whether they did. A call that fills the whole
/// warm-up has settled whatever settles within that time.
Result<bool> warm_up(Sampler& sampler, const TimerOptions& options) {
  const double limit_s = std::min(options.max_warm_up_s, kWarmUpTimes * options.min_time_s);
  double previous = -1;
  while (sampler.elapsed_s() < limit_s) {
    FATHOM_ASSIGN(std::vector<double> round, sampler.samples(kWarmUpRound, limit_s));
    if (previous < 0 && round.size() == 1) return true;
    const double median = median_of(std::move(round));
    if (previous >= 0 && std::fabs(median - previous) <= kSettledWithin * previous) return true;
    previous = median;
    const double group = std::ceil(options.min_sample_us / std::max(median, 1e-3));
    if (group > static_cast<double>(sampler.group())) {
      sampler.set_group(static_cast<int64_t>(group));
    }
  }
  return false;
}

bool enough(int64_t samples, double seconds, const TimerOptions& options) {
  const double most_s = std::max(options.max_time_s, options.min_time_s);
  if (seconds >= most_s && samples >= kLeastSamples) return true;
  return samples >= options.min_reps && seconds >= options.min_time_s;
}

}  // namespace

double quantile(std::span<const double> sorted, double q) {
  FATHOM_CHECK(!sorted.empty(), "a quantile of nothing");
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

Result<Timing> time_calls(const std::function<Status(int64_t call)>& run,
                          const TimerOptions& options,
                          const Clock& clock,
                          const std::function<void()>& before_sample) {
  Sampler sampler(run, clock, before_sample);
  Timing timing;
  FATHOM_ASSIGN(timing.settled, warm_up(sampler, options));
  timing.group = sampler.group();
  sampler.restart_watch();
  std::vector<double> us;
  while (!enough(static_cast<int64_t>(us.size()), sampler.elapsed_s(), options)) {
    FATHOM_ASSIGN(const double sample, sampler.sample());
    us.push_back(sample);
  }
  std::sort(us.begin(), us.end());
  timing.reps = static_cast<int64_t>(us.size());
  for (double sample : us)
    timing.mean_us += sample / static_cast<double>(us.size());
  timing.min_us = us.front();
  timing.max_us = us.back();
  timing.median_us = quantile(us, 0.5);
  timing.p10_us = quantile(us, 0.1);
  timing.p90_us = quantile(us, 0.9);
  return timing;
}

}  // namespace fathom
