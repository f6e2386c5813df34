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

#include "fathom/bench/peaks.h"
#include "fathom/bench/row.h"
#include "fathom/bench/timer.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/core/catalog.h"

namespace fathom {

enum class BenchCaches {
  kCold,  ///< copies rotate through more than twice the last cache
  kWarm,  ///< one copy again and again; the row says so
};

struct BenchKernelOptions {
  std::string suite = "all";
  std::vector<std::string> kernels;  ///< our names or reference names; not empty: instead of suite
  std::string filter;                ///< pattern over "kernel/case" (with either name) and the op
  std::string phase;                 ///< "decode", "prefill" or empty
  std::vector<int64_t> batch;        ///< keeps rows whose column M or B is one of these
  std::vector<int64_t> seq;          ///< column S
  std::vector<int64_t> kv_len;       ///< column KV
  bool all_variants = false;         ///< each variant that takes a case, not only the chosen one
  bool check_only = false;           ///< rows say whether they passed; none has a time or status ok
  BenchCaches caches = BenchCaches::kCold;
  TimerOptions timer;
  PeakOptions peaks;
  Isa isa = Isa::kAmx;  ///< upper limit
  int num_threads = 0;  ///< 0: all CPUs this process may use
  uint64_t seed = 1;
  std::function<void(const BenchRow&)> on_row;  ///< called after each row, for progress
};

struct BenchReport {
  BenchConditions conditions;
  Peaks peaks;
  std::vector<BenchRow> rows;

  /// Rows with that status.
  int64_t count(RowStatus status) const;
};

/// One case that a benchmark would run.
struct BenchPlanEntry {
  std::string asked;          ///< the name it was asked for by
  const KernelEntry* kernel;  ///< null: there is no such kernel here
  const Case* bench_case;     ///< null: the kernel has no case of this choice
};

/// What run_kernel_bench would run, in order. Errors: NotFound for a suite, InvalidArgument for a
/// kernel that is in no list, with near names.
Result<std::vector<BenchPlanEntry>> plan_kernel_bench(const BenchKernelOptions& options);

/// Runs a plan on kernels that are installed, adding rows to `report`, whose conditions and
/// ceilings are set.
void run_bench_plan(const std::vector<BenchPlanEntry>& plan,
                    const BenchKernelOptions& options,
                    int num_threads,
                    BenchReport& report);

/// Installs the kernels, measures the ceilings and runs the plan. Errors of single cases become
/// rows (wrong, unavailable); errors of the run as a whole (unknown names, no memory for the
/// ceilings) are returned.
Result<BenchReport> run_kernel_bench(const BenchKernelOptions& options);

/// Fills the columns that follow from cost, time and ceilings: tflops, gbps, ai, bound, roof_us,
/// pct_of_roof, peak_used. A row without a time gets those that need none.
void add_roofline(const Cost& cost, const Peaks& peaks, BenchRow& row);

}  // namespace fathom
