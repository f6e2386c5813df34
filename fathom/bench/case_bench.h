// One case on the threads of this process or on a GPU: checked, then timed only if right.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fathom/bench/harness.h"
#include "fathom/bench/timing/cold_caches.h"
#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/conformance/gpu_timing.h"

namespace fathom {

/// Of what is not done when a run is interrupted.
inline constexpr std::string_view kInterruptedReason = "the run was interrupted";

/// The row of an entry before anything ran: what it is, not how it went.
BenchRow start_row(const BenchPlanEntry& entry, const BenchConditions& conditions);

/// Holds what the rows of one process share.
class CaseBench {
 public:
  using OnRow = std::function<void(BenchRow row, const Cost& cost)>;
  using OnAbsent = std::function<void(AbsentRow row)>;

  /// `kernels`, of the backend of `options`, and `options` and `report`, of which conditions and
  /// ceilings are read, must outlive it. For the CUDA backend it takes the GPU into use. Errors:
  /// those of CaseRunner; Unavailable and OutOfMemory of the GPU.
  static Result<std::unique_ptr<CaseBench>> create(const KernelSet& kernels,
                                                   const BenchKernelOptions& options,
                                                   const BenchReport& report,
                                                   int num_threads);

  /// Why this machine leaves the case out, as far as that is known before it is made; empty if it
  /// does not.
  std::string reason_to_leave_out(const BenchPlanEntry& entry) const;

  /// The case of an entry with its operands and answers; null for one without a case, or that this
  /// machine leaves out. Several threads may call it at a time.
  std::unique_ptr<CaseInstance> make(const BenchPlanEntry& entry) const;

  /// Calls `on_row` once a variant, and `on_absent` for one that takes too long here. `instance` is
  /// what make() has made of an entry that is not left out.
  void run(const BenchPlanEntry& entry,
           std::unique_ptr<CaseInstance> instance,
           const OnRow& on_row,
           const OnAbsent& on_absent);

 private:
  std::string too_long_by_spec(const Case& c) const;

  /// Why a call by the pinned variant is left out, by its cost; empty if it is not.
  std::string too_long(const KernelEntry& kernel, CaseInstance& instance);

  /// Runs the pinned variant and fills the row; returns what a call costs on the unit that ran.
  Cost run_variant(const KernelEntry& kernel, CaseInstance& instance, BenchRow& row);

  CaseBench(const KernelSet& kernels, const BenchKernelOptions& options, const BenchReport& report)
      : kernels_(kernels), options_(options), report_(report) {}

  void time_row(CaseInstance& instance, const Cost& cost, double checked_s, BenchRow& row);
  void time_row_on_gpu(CaseInstance& instance, const Cost& cost, BenchRow& row);

  const KernelSet& kernels_;
  const BenchKernelOptions& options_;
  const BenchReport& report_;
  std::unique_ptr<CaseRunner> runner_;
  std::optional<GpuTimer> gpu_timer_;
  double plain_gflops_ = 0;  ///< measured when it is first asked for
  CacheSweep sweep_;
};

}  // namespace fathom
