// Runs kernel benchmarks: the cases of kernels/conformance, checked first and timed only if right.
//
// A row holds what a case took in one variant. Calls walk through copies of the operands, so that
// everything a call touches has left the caches since (unless `warm` is asked for), and the time is
// held against ceilings measured in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/row.h"
#include "fathom/bench/suites/plan.h"
#include "fathom/trace/cost.h"

namespace fathom {

/// A case that this machine leaves out: its columns as far as they are known, the reason in `note`.
using AbsentRow = BenchRow;

struct BenchReport {
  std::string suite;         ///< or the preset, "deepseek-r1-nvfp4"
  bool whole_suite = false;  ///< nothing but the suite chose the rows
  std::string command;       ///< that printed it, for "how to run"; set by the caller
  BenchConditions conditions;
  Peaks peaks;
  std::vector<BenchRow> rows;
  std::vector<Cost> costs;  ///< of the rows, one each; rows read from a file have none
  std::vector<AbsentRow> absent;
  std::vector<PresetStep> steps;  ///< of a preset, whose calls are among the rows

  /// Rows with that status.
  int64_t count(RowStatus status) const;
};

/// Runs a plan on these kernels, of the backend of `options`, adding rows to `report`, whose
/// conditions and ceilings are set. With a child a kernel, a case whose process dies becomes a row
/// with status crashed and the next one gets a new process. Errors: Io when the system refuses a
/// process. `between_kernels`, if there is one, is called in this process when a kernel is done.
Status run_bench_plan(const std::vector<BenchPlanEntry>& plan,
                      const KernelSet& kernels,
                      const BenchKernelOptions& options,
                      int num_threads,
                      BenchReport& report,
                      const std::function<void()>& between_kernels = nullptr);

/// Measures the ceilings and runs the plan on the kernels of this machine. Errors of single cases
/// become rows (wrong, unavailable); errors of the run as a whole (unknown names, no memory for the
/// ceilings) are returned.
Result<BenchReport> run_kernel_bench(const BenchKernelOptions& options);

/// Fills the columns that follow from cost, time and ceilings: tflops, gbps, ai, bound, roof_us,
/// pct_of_roof, peak_used. A row without a time gets those that need none.
void add_roofline(const Cost& cost, const Peaks& peaks, BenchRow& row);

}  // namespace fathom
