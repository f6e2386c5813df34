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

#include <algorithm>
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
  View draft_input = {};  ///< [T, H] where the model runs: StepResults::hidden
  /// Row of draft_input that each token of a draft pass reads, in the order of the step; empty: its
  /// own. For executors with room for drafts (StepShape::drafts). The states of such a pass take
  /// the place of those it reads.
  std::span<const int32_t> draft_rows = {};
  /// Draft passes one behind the other, each over one token of every sequence: the next one takes
  /// the token that this one gave, its state, and the row of the cache behind. A draft pass with
  /// draft_rows and tokens to sample may be a chain of up to StepShape::most_chained() passes;
  /// sequences decode, each one token, with pages for all passes. `samples` are those of the first
  /// pass, then of the second, and so on. Behind a row that is not finite a chain is worth nothing.
  ///
  /// Of trees a chain has up to most_levels() levels. Each sequence has K tokens, all of them with
  /// logits, and of each the K best tokens are asked for; the next pass takes the K best of all
  /// behind them (DraftLevel), whose rows lie behind those before: kMostTreeRows of a tree at most.
  /// Only who follows whom in the first pass is told (SequenceStep::parents).
  int64_t chain = 1;
  /// Of a chain of levels: the log-probability of the path to each token.
  std::span<const float> node_paths = {};
  const Probe* probe = nullptr;  ///< gets copies in host memory; a GPU waits for each

  bool chains_levels() const { return chain > 1 && !node_paths.empty(); }

  /// Of a step whose sequences decode as many tokens each, at least one: the nodes of a level.
  int64_t tokens_each() const { return static_cast<int64_t>(decode.front().tokens.size()); }
};

/// Valid until the next run(), `hidden` until the next step of the same pass.
struct StepResults {
  std::span<const SampleResult> samples = {};  ///< one for each of Step::samples
  View logits = {};  ///< [R, V] f32 in host memory, rows in the order of the step
  /// [T, H] where the model runs: the state after the final norm, of a chain that of its last pass.
  /// Those of a forward pass and of a draft pass with draft_rows have memory of their own, the
  /// same, if the executor was made with room for drafts; others are gone with the next step.
  View hidden = {};
};

/// A step op by op: microseconds of each record, and of the whole step.
struct TimedStep {
  std::vector<double> op_us;  ///< medians
  double step_us = 0;         ///< median of the step by itself; on a GPU as one graph
  double one_stream_us = 0;   ///< GPU: the same without the streams beside it
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

  /// Whether steps gain by having few shapes (SequenceStep::padding).
  virtual bool captures_steps() const { return false; }

  /// Moves rows of the cache that a step has written, at most as many as it has tokens. Between
  /// steps.
  virtual Status move_rows(RowMoves& moves) {
    return cache_.move_rows(moves, moves.all(), nullptr);
  }

  CacheStorage& cache() { return cache_; }

  /// Writes random numbers over the whole cache in place of rows, for benchmarks of long prefixes.
  /// Errors: those of copies to a GPU.
  Status pretend_rows(uint64_t seed);

  /// Levels of trees in a chain at most, with so many tokens of each tree in a level. 1, which is
  /// no chain, without StepShape::trees, and where a row has fewer guesses than that.
  int64_t most_levels(int64_t branches) const;

  /// CacheLayout::block_tokens of the model.
  int64_t block_tokens() const { return block_tokens_; }

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

  /// The requests of pass `pass` of a chain, with the tokens of the first one. Valid until the next
  /// call.
  std::span<const SequenceStep> requests_of(const Step& step, int64_t pass);

  /// Step::draft_rows of the tokens of a batch, in host memory; absent without any. Tokens that pad
  /// it read what the last one reads. Valid until the next call.
  View state_rows(const Step& step, int64_t num_tokens);

  /// A level of a chain of trees, as the pass over it takes it.
  struct Level {
    View tokens{}, rows{};  ///< absent of the first level, whose batch has them
    View paths, masks;

    void enter(Batch& batch) const;
  };

  /// Step::node_paths of the tokens of a batch, in host memory; absent without any. Valid until the
  /// next call.
  View node_paths(const Step& step, int64_t num_tokens);

  /// Chooses the level behind one whose best tokens are known.
  Status choose_level(const View& ids, const View& logprobs, const Level& from, const Level& to);

  /// Runs pass `pass` of a chain, or of a step that is none, on `batch`. Its activations take what
  /// is free in the arena. `batch` has the state_rows() of the first pass.
  Status forward(const Step& step, int64_t pass, Batch& batch, ForwardOut& out);

  const Model& model_;
  const Compute compute_;
  ExecutorSettings settings_;
  const int64_t block_tokens_;
  CacheStorage cache_;
  Buffer hidden_;  // rows that outlive their step; empty without drafts
  Arena activations_;
  Arena scratch_;
  Exec exec_;
  BatchBuffer batch_;
  std::vector<SequenceStep> chained_;
  std::vector<int32_t> chained_parents_;
  std::vector<int32_t> state_rows_;
  std::vector<float> node_paths_;

 private:
  Status check_drafts(const Step& step) const;
  Status check_chain(const Step& step, int64_t tokens) const;

  /// The memory of states that outlive their step, as rows.
  View kept_states(int64_t num_tokens);
};

}  // namespace fathom
