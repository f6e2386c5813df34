// One step: the plan of the scheduler becomes a batch, the model runs, and each row of logits gives
// a token. What a row is sampled with is asked of the owner of the sequences.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/models/model.h"
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
};

Result<MemoryNeeds> step_memory(const Model& model, const StepShape& shape);

/// Runs planned steps. Everything it needs is taken at construction, so steady decode allocates
/// nothing.
class StepRunner {
 public:
  /// All arguments outlive the runner. `ex` has arenas of step_memory() bytes.
  StepRunner(const Model& model, const KvStorage& kv, Exec& ex, const StepShape& shape);

  /// Computes the plan: afterwards results() has one entry for each item that yields a token, those
  /// of plan.prefill first. `row_of` says what a sequence is sampled with. Errors: those of the
  /// model and the kernels; then no result counts.
  using RowOf = std::function<SampleRow(const Sequence&)>;
  Status run(const StepPlan& plan, const RowOf& row_of);

  std::span<const SampleResult> results() const { return results_; }

 private:
  void reserve_batch(const StepShape& shape);
  Result<Batch> build(const StepPlan& plan);

  const Model& model_;
  const KvStorage& kv_;
  Exec& ex_;
  BatchBuffer batch_;
  Sampler sampler_;
  std::vector<SequenceStep> prefill_;
  std::vector<SequenceStep> decode_;
  std::vector<SampleRow> rows_;
  std::vector<SampleResult> results_;
};

}  // namespace fathom
