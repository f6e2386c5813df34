// Executor: runs steps of one model on one device. It owns the memory that steps use (cache,
// activations, workspaces, metadata), the stream and the captured graphs; it knows nothing of
// requests, schedules and prefixes. Engine, evaluation, traces and benchmarks are its clients, so
// what they measure is what serves.
//
//   run(step)   tokens, pages, what to sample with -> one sampled token a row, or the logits;
//               8 bytes a row come back from a GPU unless somebody asks for more
//
// run() returns when the step is done. It is start() and finish(), between which the host is free
// while a GPU works: docs/decisions/0006-the-host-beside-the-gpu.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/models/model.h"
#include "fathom/runtime/executor/compute.h"
#include "fathom/runtime/executor/step_memory.h"
#include "fathom/runtime/kv/cache_storage.h"
#include "fathom/runtime/sample/sampler.h"
#include "fathom/trace/recorder.h"

namespace fathom {

enum class CudaGraphs : uint8_t { kOff, kOn };

/// What comes back from a step.
enum class StepWants : uint8_t {
  kNothing,  ///< rows are written to the cache, that is all
  kTokens,   ///< each row of logits is sampled with its SampleRow
  kLogits,   ///< the logits themselves, in host memory
};

/// One step: tokens of some sequences, each appended to what its pages hold.
struct Step {
  /// Model::draft instead of Model::forward: row i has the token after position i, and reads row
  /// i of `draft_input`.
  enum class Pass : uint8_t { kForward, kDraft };

  std::span<const SequenceStep> prefill = {};
  std::span<const SequenceStep> decode = {};  ///< in a GPU's graph if each has as many tokens
  StepWants wants = StepWants::kNothing;
  std::span<const SampleRow> samples = {};     ///< kTokens: one for each row of logits, in order
  std::span<const SlotCopy> slot_copies = {};  ///< made before anything else
  Pass pass = Pass::kForward;
  View draft_input = {};  ///< [T, H] where the model runs: rows of StepResults::hidden
  /// Row of draft_input that each token of a draft pass reads, in the order of the step; empty: its
  /// own. Those of a forward pass ascend, each once. A pass that reads some has room for drafts
  /// (StepShape::drafts). The rows that a forward pass left are gone then.
  std::span<const int32_t> draft_rows = {};
  const Probe* probe = nullptr;  ///< gets copies in host memory; a GPU waits for each
};

/// Valid until the next run(), `hidden` until the next step of the same pass.
struct StepResults {
  std::span<const SampleResult> samples = {};
  View logits = {};  ///< [R, V] f32 in host memory, rows in the order of the step
  /// [T, H] where the model runs: the state after the final norm. That of a forward pass has memory
  /// of its own if the executor was made with room for drafts; else it is gone with the next step.
  View hidden = {};
};

/// A step op by op: microseconds of each record, and of the whole step.
struct TimedStep {
  std::vector<double> op_us;  ///< medians
  double step_us = 0;         ///< median of the step by itself; on a GPU as one graph
  double one_stream_us = 0;   ///< GPU: the same without the second stream
};

struct ExecutorSettings {
  StepShape shape;  ///< the largest steps
  int64_t num_blocks = 0;
  int64_t num_slots = 0;
  MemoryNeeds memory;  ///< step_memory() of the shape
  CudaGraphs graphs = CudaGraphs::kOn;
  Pins pins = {};
};

class Executor {
 public:
  /// Takes all memory that steps of the shape need. The model lies where `compute` is and outlives
  /// the executor. Errors: OutOfMemory; InvalidArgument for a model that lies elsewhere.
  static Result<std::unique_ptr<Executor>> create(const Model& model,
                                                  const Compute& compute,
                                                  ExecutorSettings settings);
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Runs a step and waits for it: start() and finish(). Errors: those of the passes and of the
  /// device as step_fault() has them: what is refused within a step is a fault of the engine. The
  /// step has no results then.
  Result<StepResults> run(const Step& step);

  /// Gives a step to the device. What it refers to must live, and nothing else of this executor be
  /// called, until finish(), which follows unless this fails.
  Status start(const Step& step);

  /// Waits for it.
  Result<StepResults> finish();

  /// Whether the step goes on by itself behind start(): the host may work meanwhile.
  virtual bool works_apart() const { return false; }

  /// Runs a step `repetitions` times by itself and as often with times of each op; the recorder
  /// gets its records once. Sequences must not mind being computed again: nothing is sampled.
  virtual Result<TimedStep> time(const Step& step, Recorder& recorder, int repetitions) = 0;

  /// Captured steps; 0 on the CPU.
  virtual int64_t num_graphs() const { return 0; }

  /// Moves rows of the cache that a step has written: CacheStorage::move_rows. Between steps.
  Status move_rows(std::span<const PageId> pages, int64_t to, std::span<const int64_t> from) {
    return cache_.move_rows(pages, to, from, exec_.stream);
  }

  CacheStorage& cache() { return cache_; }

  /// Writes random numbers over the whole cache in place of rows, for benchmarks of long prefixes.
  /// Errors: those of copies to a GPU.
  Status pretend_rows(uint64_t seed);

  const StepShape& shape() const { return settings_.shape; }

  /// Ops are recorded here; null: not. A step that is recorded is launched op by op.
  void set_recorder(Recorder* recorder) { exec_.recorder = recorder; }

  /// Cache, activations, workspaces and hidden states.
  int64_t memory_bytes() const;

 protected:
  Executor(const Model& model, const Compute& compute, ExecutorSettings settings);

  /// What start() and finish() do, with the errors as they come.
  virtual Status submit(const Step& step) = 0;
  virtual Result<StepResults> collect() = 0;

  Status allocate();

  /// Null without any.
  const Pins* pins() const { return settings_.pins.empty() ? nullptr : &settings_.pins; }

  /// Resets the arenas and runs the pass of a step on `batch`.
  Status forward(const Step& step, Batch& batch, ForwardOut& out);

  /// The memory of states that outlive their step, as rows.
  View kept_states(int64_t num_tokens);

  /// The rows of hidden states that a draft pass over so many tokens reads, one behind the other.
  Result<View> gather_states(const Step& step, int64_t num_tokens);

  const Model& model_;
  const Compute compute_;
  ExecutorSettings settings_;
  CacheStorage cache_;
  Buffer hidden_;  // rows that outlive their step; empty without drafts
  Arena activations_;
  Arena scratch_;
  Exec exec_;
  BatchBuffer batch_;
};

}  // namespace fathom
