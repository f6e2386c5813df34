// Passes over a few sequences without scheduler: what `eval`, `trace` and `bench model` need. A
// session owns an executor, as an engine does, and gives it steps of its own making.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/runtime/executor/executor.h"

namespace fathom {

struct SessionOptions {
  int64_t max_tokens = 1024;  ///< longest sequence
  int64_t chunk = 512;        ///< most prompt tokens in one pass
  int64_t sequences = 1;
  LogitRows prefill_logits = LogitRows::kLast;  ///< kAll needs room for chunk * V floats
  bool draft = false;                           ///< room for passes of the draft head too
  CudaGraphs cuda_graphs = CudaGraphs::kOn;
  Pins pins = {};
};

/// Sequences 0 .. sequences-1, empty at first. Not thread-safe; uses the pool's threads.
class ForwardSession {
 public:
  /// Takes the memory of the largest passes. The model lies where `compute` is and outlives the
  /// session. Errors: InvalidArgument for a length beyond the model's context; OutOfMemory.
  static Result<std::unique_ptr<ForwardSession>> create(const Model& model,
                                                        const Compute& compute,
                                                        const SessionOptions& options);

  /// Appends tokens to one sequence, in passes of at most `chunk`. `on_rows(first, out)` is called
  /// after each pass with the position of its first token; the views live until the next pass.
  /// With LogitRows::kLast only the last pass has logits. Errors: those of Model::forward, and
  /// InvalidArgument beyond max_tokens.
  using OnRows = std::function<Status(int64_t first, const StepResults& out)>;
  Status prefill(int64_t sequence,
                 std::span<const int32_t> tokens,
                 LogitRows logits,
                 const OnRows& on_rows,
                 const Probe* probe = nullptr);

  /// Appends one token to each of the first tokens.size() sequences. The logits [B, V] live until
  /// the next pass.
  Result<View> decode(std::span<const int32_t> tokens);

  /// The same, but each token is followed by one that the sampler draws with `params`, as a server
  /// does; it comes back in `next` and is not appended. Errors: Numerical for logits that are not
  /// finite.
  Status decode_sampled(std::span<const int32_t> tokens,
                        const SamplingParams& params,
                        std::span<int32_t> next);

  /// Takes each sequence for `length` tokens long, with random numbers in the cache in place of
  /// rows: for benchmarks, where computing a long prefix takes longer than what is measured.
  /// Errors: InvalidArgument beyond max_tokens; those of Executor::pretend_rows.
  Status pretend_prefix(int64_t length, uint64_t seed);

  /// One decode step op by op (Executor::time); the sequences stay as long as they are.
  Result<TimedStep> time_decode(std::span<const int32_t> tokens,
                                Recorder& recorder,
                                int repetitions);

  /// The same for one pass over prompt tokens behind those that a sequence holds, which stays as
  /// long as it is. Errors: InvalidArgument for more tokens than a pass takes or the sequence has
  /// room for.
  Result<TimedStep> time_prefill(int64_t sequence,
                                 std::span<const int32_t> tokens,
                                 LogitRows logits,
                                 Recorder& recorder,
                                 int repetitions);

  /// One pass of the draft head over sequence 0 from its start: row i has tokens[i], the token
  /// after position i, and hidden [T, H] of position i, rows of the results of an earlier pass.
  Result<StepResults> draft(std::span<const int32_t> tokens, const View& hidden);

  /// That pass op by op, as time_decode().
  Result<TimedStep> time_draft(std::span<const int32_t> tokens,
                               const View& hidden,
                               Recorder& recorder,
                               int repetitions);

  /// Forgets the tokens of every sequence; the pages are reused.
  void reset();

  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }

  /// Passes are recorded here; null: not.
  void set_recorder(Recorder* recorder);

  /// Memory and graphs of the passes; the weights belong to the model.
  Executor& executor() { return *executor_; }

 private:
  ForwardSession(const Model& model, const SessionOptions& options);

  Status list_decode(std::span<const int32_t> tokens);
  Status check_room(int64_t sequence, int64_t count) const;
  SequenceStep step_of(int64_t sequence,
                       std::span<const int32_t> tokens,
                       int64_t cached,
                       LogitRows logits) const;
  Result<StepResults> run(const Step& step, Phase phase);

  SessionOptions options_;
  int64_t blocks_per_sequence_ = 0;
  std::vector<int32_t> blocks_;  // [sequences, blocks_per_sequence]
  std::vector<int64_t> lengths_;
  std::vector<SequenceStep> steps_;
  std::vector<SampleRow> rows_;
  Recorder* recorder_ = nullptr;
  std::unique_ptr<Executor> executor_;
};

}  // namespace fathom
