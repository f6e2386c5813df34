// Times the kernel of a case on a GPU: a graph of many launches, so that the gaps between launches
// of the host stay out of the figure, walking through copies of the operands, so that what a launch
// reads has left the last cache since.
#pragma once

#include <cstdint>
#include <vector>

#include "fathom/device/graph.h"
#include "fathom/kernels/conformance/case_runner.h"

namespace fathom {

struct GpuTimerOptions {
  int64_t min_replays = 20;    ///< samples, unless max_time_s ends the measurement first
  double min_time_s = 0.05;    ///< and at least so long
  double max_time_s = 1.0;     ///< but no longer, once there are 3 samples (or one, that long)
  double warm_up_s = 0.02;     ///< replays before the first sample
  double graph_us = 2000;      ///< launches are added to a graph until it takes about so long
  int64_t max_launches = 256;  ///< but no more than these
  bool cold = true;            ///< false: one copy again and again, out of the caches
};

/// Microseconds of one launch.
struct GpuTiming {
  std::vector<double> us;  ///< the mean launch of each replay, sorted
  int64_t launches = 0;    ///< in the graph
  int copies = 0;          ///< of the operands

  double quantile(double q) const;

  double median() const { return quantile(0.5); }
};

class GpuTimer {
 public:
  /// On the GPU in use. Errors: OutOfMemory, Unavailable.
  static Result<GpuTimer> create(const DeviceInfo& device);

  /// Times a case that has been found right on this runner. Between replays the last cache is
  /// filled with other data. Outputs that a kernel updates in place are not reset between launches.
  /// Errors: OutOfMemory where two copies do not fit; those of the launch; DeviceLost.
  Result<GpuTiming> time(CaseRunner& runner,
                         CaseInstance& instance,
                         const GpuTimerOptions& options);

  /// Times any work in the same way: `record` gives `launches` launches to the stream.
  Result<GpuTiming> time(Stream& stream,
                         int64_t launches,
                         const GpuTimerOptions& options,
                         const std::function<Status()>& record);

 private:
  GpuTimer(Buffer flush, int64_t l2_bytes, Event begin, Event end)
      : flush_(std::move(flush)),
        l2_bytes_(l2_bytes),
        begin_(std::move(begin)),
        end_(std::move(end)) {}

  int copies_for(CaseInstance& instance, const CaseRunner& runner) const;
  Result<double> time_once(Stream& stream, Graph& graph);

  Buffer flush_;
  int64_t l2_bytes_;
  Event begin_;
  Event end_;
};

}  // namespace fathom
