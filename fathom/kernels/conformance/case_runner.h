// Runs a case: the Exec it needs, the checks that belong to every launch. Shared by the conformance
// test and the benchmark, so that a figure never comes from a launch that was not checked.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "fathom/kernels/conformance/cases.h"
#include "fathom/os/thread_pool.h"

namespace fathom {

/// An Exec on the CPU backend with threads and scratch memory of its own.
class CaseRunner {
 public:
  explicit CaseRunner(int num_threads, PinThreads pin = PinThreads::kNo);

  Exec& exec() { return exec_; }

  /// Pins `kernel` to a variant; an empty variant removes the pin.
  void pin(std::string_view kernel, std::string_view variant);

  /// Sizes the scratch memory for the case and fills it with NaN. Errors: OutOfMemory.
  Status prepare(CaseInstance& instance);

  /// Resets copy 0, launches on it, holds it to the gates and to its guards. The report of a launch
  /// that failed carries its message in `why`.
  CheckReport run_checked(CaseInstance& instance);

 private:
  std::string workspace_damage() const;

  ThreadPool pool_;
  Arena scratch_;
  std::byte* scratch_data_ = nullptr;
  int64_t scratch_bytes_ = 0;
  Pins pins_;
  Exec exec_;
};

/// How thoroughly check_traits looks.
struct TraitChecks {
  int repeats = 20;  ///< launches on equal input, at two threads
};

/// Launches again and again, with 1, 2 and 3 threads and on parts of the batch, and compares bits.
/// Empty if the variant keeps its traits; else what differs.
std::string check_traits(CaseInstance& instance,
                         std::string_view kernel,
                         std::string_view variant,
                         uint32_t traits,
                         const TraitChecks& checks);

}  // namespace fathom
