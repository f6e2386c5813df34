// One step: the plan of the scheduler becomes a batch, the model runs, and each row of logits gives
// a token. What a row is sampled with is asked of the owner of the sequences.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/models/model.h"
#include "fathom/runtime/gpu/gpu_runner.h"
#include "fathom/runtime/kv/kv_layout.h"
#include "fathom/runtime/sample/sampler.h"
#include "fathom/runtime/scheduler.h"

namespace fathom {

/// Memory that one step takes from the arenas, in bytes: the model's largest pass by dry runs, and
/// sampling of max_num_seqs rows behind it. `num_ids` as for Sampler.
struct StepShape {
  int64_t max_num_seqs = 1;
  int64_t max_num_batched_tokens = 1;
  int64_t max_model_len = 1;
  int64_t num_ids = 1;
  int num_threads = 1;
  const KernelSet* kernels = nullptr;  ///< of the GPU
  const DeviceInfo* gpu = nullptr;     ///< null: the CPU
};

/// What a step takes where the model runs. On a GPU the sampler's memory is not part of it:
/// samplers run on the host, from logits brought back. Errors: Unsupported for a model that a GPU
/// has no kernels for, naming the op.
Result<MemoryNeeds> step_memory(const Model& model, const StepShape& shape);

/// Runs planned steps. Everything it needs is taken at construction, so steady decode allocates
/// nothing.
class StepRunner {
 public:
  /// All arguments outlive the runner. `ex` has arenas of step_memory() bytes; `cpu_kernels` are
  /// what samplers run on. Errors: OutOfMemory.
  static Result<std::unique_ptr<StepRunner>> create(const Model& model,
                                                    const KvStorage& kv,
                                                    Exec& ex,
                                                    const StepShape& shape,
                                                    const KernelSet* cpu_kernels,
                                                    CudaGraphs graphs);

  /// Computes the plan: afterwards results() has one entry for each item that yields a token, those
  /// of plan.prefill first. `row_of` says what a sequence is sampled with. Errors: those of the
  /// model and the kernels; then no result counts.
  using RowOf = std::function<SampleRow(const Sequence&)>;
  Status run(const StepPlan& plan, const RowOf& row_of);

  std::span<const SampleResult> results() const { return results_; }

 private:
  StepRunner(const Model& model, const KvStorage& kv, Exec& ex, const StepShape& shape);

  void reserve_batch(const StepShape& shape);
  void list_sequences(const StepPlan& plan);
  Status create_gpu_runner(const StepShape& shape, CudaGraphs graphs);
  Status run_on_gpu();

  const Model& model_;
  const KvStorage& kv_;
  Exec& ex_;
  BatchBuffer batch_;
  Sampler sampler_;
  std::vector<SequenceStep> prefill_;
  std::vector<SequenceStep> decode_;
  std::vector<SampleRow> rows_;
  std::vector<SampleResult> results_;
  // On a GPU: its steps, and what samplers need on the host.
  std::unique_ptr<GpuRunner> gpu_;
  Arena host_activations_;
  Arena host_scratch_;
  Exec host_;
};

}  // namespace fathom
