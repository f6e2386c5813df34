// Runs a case: the Exec it needs, the checks that belong to every launch. Shared by the conformance
// test and the benchmark, so that a figure never comes from a launch that was not checked.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "fathom/device/device.h"
#include "fathom/device/stream.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/os/thread_pool.h"

namespace fathom {

/// An Exec with threads and scratch memory of its own: on the CPU, or on the GPU in use.
///
/// On a GPU the operands of a case live twice. Cases are made, reset and judged in memory of the
/// host; load() gives their copies places on the GPU, launch() takes bytes there and back.
class CaseRunner {
 public:
  /// `kernels`, those of the CPU, outlive the runner. Being refused a thread by the system is fatal
  /// here; use create() where the number comes from outside.
  CaseRunner(const KernelSet& kernels, int num_threads, PinThreads pin = PinThreads::kNo);

  /// As the constructor. Errors: those of ThreadPool::create.
  static Result<std::unique_ptr<CaseRunner>> create(const KernelSet& kernels,
                                                    int num_threads,
                                                    PinThreads pin);

  /// On the GPU in use by this thread, whose kernels these are, with `operand_bytes` of its memory
  /// for the operands of one case. Errors: OutOfMemory, Unavailable.
  static Result<std::unique_ptr<CaseRunner>> on_gpu(const KernelSet& kernels,
                                                    const DeviceInfo& device,
                                                    int64_t operand_bytes);

  CaseRunner(const CaseRunner&) = delete;
  CaseRunner& operator=(const CaseRunner&) = delete;

  Exec& exec() { return exec_; }

  /// Bytes of GPU memory for the operands of one case; 0 on the CPU.
  int64_t operand_bytes() const { return operands_.capacity(); }

  bool is_gpu() const { return exec_.backend == Backend::kCuda; }

  /// Brings every copy of the case to where kernels find it, in place of the case before. Nothing
  /// to do on the CPU. Errors: OutOfMemory.
  Status load(CaseInstance& instance);

  /// Pins `kernel` to a variant; an empty variant removes the pin.
  void pin(std::string_view kernel, std::string_view variant);

  /// Sizes the scratch memory for the case and fills it with NaN. Errors: OutOfMemory.
  Status prepare(CaseInstance& instance);

  /// Prepares, resets a copy, launches on it and waits. Results are in the memory of the host then.
  /// Errors: those of the launch; DeviceLost.
  Status launch(CaseInstance& instance, int copy);

  /// The same on rows [begin, begin + count) of the batch alone.
  Status launch_rows(CaseInstance& instance, int copy, int64_t begin, int64_t count);

  /// Loads the case, resets copy 0, launches on it, holds it to the gates and to its guards. The
  /// report of a launch that failed carries its message in `why`.
  CheckReport run_checked(CaseInstance& instance);

 private:
  CaseRunner(const KernelSet& kernels, std::unique_ptr<ThreadPool> pool);

  template <class Launch>
  Status reset_and_launch(CaseInstance& instance, int copy, Launch launch);
  Status fill_scratch(int64_t offset, int64_t bytes);
  std::string workspace_damage();

  std::unique_ptr<ThreadPool> pool_;
  Arena scratch_;
  std::byte* scratch_data_ = nullptr;
  int64_t scratch_bytes_ = 0;
  Pins pins_;
  std::optional<Stream> stream_;  // GPU only, as are the next two
  DeviceInfo device_;
  Arena operands_;
  Exec exec_;
};

/// How thoroughly check_traits looks.
struct TraitChecks {
  int repeats = 20;  ///< launches on equal input, at two threads
};

/// Launches again and again, on the CPU with 1, 2 and 3 threads and on parts of the batch, and
/// compares bits. Empty if the variant keeps its traits; else what differs.
std::string check_traits(const KernelSet& kernels,
                         CaseInstance& instance,
                         std::string_view kernel,
                         std::string_view variant,
                         uint32_t traits,
                         const TraitChecks& checks);

/// The same on the GPU of `runner`, whose pin is kept and which has the instance loaded. For
/// kGraphSafe the launch is captured once and replayed: on equal input, and on that of `changed`,
/// the same case made from another seed, which then holds its own answers. `changed` may be null.
std::string check_gpu_traits(CaseRunner& runner,
                             CaseInstance& instance,
                             CaseInstance* changed,
                             uint32_t traits,
                             const TraitChecks& checks);

}  // namespace fathom
