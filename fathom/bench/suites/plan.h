// What a kernel benchmark runs: the cases of the kernels that were asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/preset/steps.h"
#include "fathom/bench/row.h"
#include "fathom/bench/timing/timer.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/core/kernel_set/catalog.h"

namespace fathom {

enum class BenchCaches {
  kCold,  ///< calls find nothing of their operands in the caches
  kWarm,  ///< one copy again and again; the row says so
};

enum class BenchIsolation {
  kInProcess,
  kChildPerKernel,  ///< a kernel that dies costs the row it was in
};

struct BenchKernelOptions {
  std::string suite = "all";
  std::string preset;                ///< rows of this preset's own graph instead of a suite's
  std::vector<std::string> kernels;  ///< our names or reference names; not empty: these alone
  std::string filter;                ///< pattern over "kernel/case" (with either name) and the op
  std::string phase;                 ///< "decode", "prefill", "verify" or empty
  // Of a suite these keep rows whose column has one of the values; of a preset they are the steps
  // that are recorded (StepChoice).
  std::vector<int64_t> batch;   ///< column M or B
  std::vector<int64_t> seq;     ///< column S
  std::vector<int64_t> kv_len;  ///< column KV
  bool all_variants = false;    ///< each variant that takes a case, not only the chosen one
  bool check_only = false;      ///< rows say whether they passed; none has a time or status ok
  BenchCaches caches = BenchCaches::kCold;
  BenchIsolation isolation = BenchIsolation::kInProcess;
  TimerOptions timer;
  double max_call_s = 0;    ///< leaves out cases of which one call takes longer; 0: none
  int64_t deadline_ns = 0;  ///< monotonic_ns after which no case begins; 0: none
  PeakOptions peaks;
  Backend backend = Backend::kCpu;  ///< kCpu or kCuda
  int device = 0;                   ///< ordinal of the GPU
  std::optional<DeviceInfo> gpu;    ///< that steps of a preset are recorded for; none: a CPU
  Isa isa = Isa::kAmx;              ///< upper limit
  int num_threads = 0;              ///< 0: all CPUs this process may use
  uint64_t seed = 1;

  /// Asked between cases and while a child works: true ends the run, and what is not done is left
  /// out. Null: nobody ends it.
  std::function<bool()> interrupted;

  /// Called before entry `index` of `count`, for progress. "kernel/case".
  std::function<void(int64_t index, int64_t count, const std::string& name)> on_start;
};

/// The flags that choose among the cases of a suite, as a command line has them:
/// " --filter 'x' --batch 1,8".
std::string filter_flags(const BenchKernelOptions& options);

/// One case that a benchmark would run.
struct BenchPlanEntry {
  std::string asked;                      ///< the name it was asked for by
  const KernelEntry* kernel;              ///< null: there is no such kernel here
  std::optional<Case> bench_case = {};    ///< none: see why
  std::optional<RecordedCall> call = {};  ///< that the case must be the same as
  std::string case_name = {};             ///< of a call without a case
  std::string why = "no case of this choice";

  /// "kernel/case", as far as there are such.
  std::string name() const;
};

struct BenchPlan {
  std::vector<BenchPlanEntry> entries;
  std::vector<PresetStep> steps;  ///< whose calls are among the entries
};

/// What run_kernel_bench would run, in order: the cases of a suite, then the calls of its preset's
/// steps; of a preset these alone; of a suite of steps their distinct calls, and no steps, since a
/// row may stand for calls of several. A case that belongs to a suite is in the plan of that suite
/// alone. Errors: InvalidArgument for a suite or a phase that is not known, for a kernel that is in
/// no list or not in the suite, with near names, and for a choice that leaves nothing; NotFound for
/// a preset that is not known; those of preset_steps.
Result<BenchPlan> plan_kernel_bench(const BenchKernelOptions& options);

/// Stores "M=1;E=256" into the split columns; axes that have no column are left out.
void split_columns(std::string_view text, BenchRow& row);

/// Stores the columns that a case gives itself; those that it leaves to its axes stay as they are.
void store_columns(const CaseSpec& spec, BenchRow& row);

/// The first reference name of a kernel, or nothing.
std::string_view reference_name_of(const KernelEntry& kernel);

}  // namespace fathom
