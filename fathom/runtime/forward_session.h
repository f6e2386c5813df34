// Forward passes over a few sequences without scheduler or sampler: what `eval` and `bench model`
// need. It owns pages and arenas; the model is only read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/arena.h"
#include "fathom/models/model.h"
#include "fathom/os/thread_pool.h"
#include "fathom/runtime/gpu/gpu_runner.h"

namespace fathom {

struct SessionOptions {
  int64_t max_tokens = 1024;  ///< longest sequence
  int64_t chunk = 512;        ///< most prompt tokens in one pass
  int64_t sequences = 1;
  LogitRows prefill_logits = LogitRows::kLast;  ///< kAll needs room for chunk * V floats
  bool draft = false;                           ///< room for passes of the draft head too
  const KernelSet* kernels = nullptr;  ///< of the CPU; outlives the session. A GPU has its own
  Gpu* gpu = nullptr;  ///< where the model lies; null: on the CPU. Outlives the session
  CudaGraphs cuda_graphs = CudaGraphs::kOn;
};

/// Sequences 0 .. sequences-1, empty at first. Not thread-safe; uses the pool's threads.
class ForwardSession {
 public:
  /// Allocates pages and arenas, sized by dry runs of the largest passes. The model and the pool
  /// outlive the session. Errors: InvalidArgument for a length beyond the model's context;
  /// OutOfMemory.
  static Result<std::unique_ptr<ForwardSession>> create(const Model& model,
                                                        ThreadPool& pool,
                                                        const SessionOptions& options);

  /// Appends tokens to one sequence, in passes of at most `chunk`. `on_rows(first, out)` is called
  /// after each pass with the position of its first token; the views live until the next pass.
  /// With LogitRows::kLast only the last pass has logits. Errors: those of Model::forward, and
  /// InvalidArgument beyond max_tokens.
  using OnRows = std::function<Status(int64_t first, const ForwardOut& out)>;
  Status prefill(int64_t sequence,
                 std::span<const int32_t> tokens,
                 LogitRows logits,
                 const OnRows& on_rows,
                 const Probe* probe = nullptr);

  /// Appends one token to each of the first tokens.size() sequences. The logits [B, V] live until
  /// the next pass.
  Result<View> decode(std::span<const int32_t> tokens);

  /// The same, but only the largest logit of each sequence comes back, into `next`. On a GPU that
  /// is what a server pays for a step.
  Status decode_greedy(std::span<const int32_t> tokens, std::span<int32_t> next);

  /// Takes each sequence for `length` tokens long, with random numbers in the cache in place of
  /// keys: for benchmarks, where computing a long prefix takes longer than what is measured. On a
  /// GPU alone; errors: Unsupported elsewhere, InvalidArgument beyond max_tokens.
  Status pretend_prefix(int64_t length, uint64_t seed);

  /// One decode step op by op, as GpuRunner::time_step; the sequences stay as long as they are.
  Result<GpuRunner::TimedStep> time_decode(std::span<const int32_t> tokens,
                                           Recorder& recorder,
                                           int repetitions);

  /// The same for one pass over prompt tokens behind those that a sequence holds, which stays as
  /// long as it is. Errors: InvalidArgument for more tokens than a pass takes or the sequence has
  /// room for.
  Result<GpuRunner::TimedStep> time_prefill(int64_t sequence,
                                            std::span<const int32_t> tokens,
                                            LogitRows logits,
                                            Recorder& recorder,
                                            int repetitions);

  /// One pass of the draft head over sequence 0 from its start: row i has tokens[i], the token
  /// after position i, and hidden [T, H] of position i.
  Result<ForwardOut> draft(std::span<const int32_t> tokens, const View& hidden);

  /// That pass op by op, as time_decode(); `hidden` is that of the pass before.
  Result<GpuRunner::TimedStep> time_draft(std::span<const int32_t> tokens,
                                          const View& hidden,
                                          Recorder& recorder,
                                          int repetitions);

  /// Captured decode steps; 0 on the CPU.
  int64_t num_graphs() const { return gpu_ == nullptr ? 0 : gpu_->num_graphs(); }

  /// Forgets the tokens of every sequence; the pages are reused.
  void reset();

  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }

  /// Passes are recorded here; null: not.
  void set_recorder(Recorder* recorder) { exec_.recorder = recorder; }

  void set_pins(const Pins* pins) { exec_.pins = pins; }

  /// Pages, activations and scratch; the weights belong to the model.
  int64_t memory_bytes() const;

  int64_t kv_bytes() const { return kv_memory_.size(); }

 private:
  ForwardSession(const Model& model, const SessionOptions& options);

  Status allocate(ThreadPool& pool);
  Result<MemoryNeeds> memory_needs(int num_threads) const;
  Status create_gpu_runner();
  Status list_decode(std::span<const int32_t> tokens);
  Status check_room(int64_t sequence, int64_t count) const;
  SequenceStep draft_step(std::span<const int32_t> tokens) const;
  std::span<const int32_t> pages_of(int64_t sequence) const;
  Result<ForwardOut> forward(std::span<const SequenceStep> prefill,
                             std::span<const SequenceStep> decode,
                             const Probe* probe);
  Result<ForwardOut> forward_on_gpu(std::span<const SequenceStep> prefill,
                                    std::span<const SequenceStep> decode,
                                    const Probe* probe);

  const Model& model_;
  SessionOptions options_;
  int64_t pages_per_sequence_ = 0;
  Buffer kv_memory_;
  std::vector<View> kv_;        // of each layer
  std::vector<int32_t> pages_;  // [sequences, pages_per_sequence]
  std::vector<int64_t> lengths_;
  std::vector<SequenceStep> steps_;
  Arena activations_;
  Arena scratch_;
  BatchBuffer batch_;
  Exec exec_;
  std::unique_ptr<GpuRunner> gpu_;
};

}  // namespace fathom
