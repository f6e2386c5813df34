// Steps of a model on a GPU. The host makes the metadata of a step (ids, positions, slots, tables),
// sends it in one copy from pinned memory, gives the work to the stream, and waits once, at the
// end:
//
//   start()    metadata -> pinned -> GPU; forward pass and the largest logit of each row
//   finish*()  what is wanted back -> pinned; waits
//
// Steps that only decode have one of few shapes (gpu_shapes.h). After the first step of a shape its
// work is captured as a graph, which every later one replays: all that changes is in the metadata.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/graph.h"
#include "fathom/device/stream_marks.h"
#include "fathom/models/model.h"
#include "fathom/runtime/gpu/gpu.h"

namespace fathom {

enum class CudaGraphs : uint8_t { kOff, kOn };

/// The largest steps a runner takes.
struct GpuRunnerShape {
  int64_t max_tokens = 1;    ///< padding of the decode range not counted
  int64_t max_requests = 1;  ///< that prefill, and that decode
  int64_t max_pages = 1;     ///< of a request
  int64_t max_logits = 1;    ///< rows that finish_logits() may bring back
  int64_t num_ids = 1;       ///< ids from here on are padding of the vocabulary
  CudaGraphs graphs = CudaGraphs::kOn;
};

/// The largest logit of a row, as the Argmax kernel finds it.
struct GreedyChoice {
  int32_t id = -1;
  bool finite = false;
};

class GpuRunner {
 public:
  /// `kv` and `ex` are those of the steps; all references outlive the runner. The stream and arenas
  /// of `ex` are used by nobody else. Errors: OutOfMemory.
  static Result<std::unique_ptr<GpuRunner>> create(const Model& model,
                                                   std::span<const View> kv,
                                                   Exec& ex,
                                                   const GpuRunnerShape& shape);

  /// Gives a step to the GPU. Views of `out` lie in its memory, until the next step. A probe gets
  /// copies in host memory, and makes the step wait for each. Errors: those of Model::forward.
  Status start(std::span<const SequenceStep> prefill,
               std::span<const SequenceStep> decode,
               ForwardOut& out,
               const Probe* probe = nullptr);

  /// Gives a pass of the draft head to the GPU, behind the step whose `hidden` it reads.
  Status start_draft(std::span<const SequenceStep> prefill, const View& hidden, ForwardOut& out);

  /// Ends the step. Errors: DeviceLost.
  Status finish();

  /// Ends the step with the choices of the rows of logits, those of `prefill` first; padding comes
  /// last. Valid until the next step.
  Result<std::span<const GreedyChoice>> finish_choices();

  /// Ends the step with its logits [R, V] in host memory, padding last. Valid until the next step.
  Result<View> finish_logits();

  /// Captured steps.
  int64_t num_graphs() const { return static_cast<int64_t>(graphs_.size()); }

  /// A step op by op: microseconds of each record of the recorder, and of the whole step.
  struct TimedStep {
    std::vector<double> op_us;  ///< medians, with a mark before and after each
    double step_us = 0;         ///< median of the step as one graph, without marks
    double one_stream_us = 0;   ///< the same without the second stream
  };

  /// Runs a step `repetitions` times as a graph with marks, and as often without. The recorder gets
  /// its records once. Sequences must not mind being computed again.
  Result<TimedStep> time_step(std::span<const SequenceStep> prefill,
                              std::span<const SequenceStep> decode,
                              Recorder& recorder,
                              int repetitions);

  /// The same for a pass of the draft head, behind the step whose `hidden` it reads.
  Result<TimedStep> time_draft(std::span<const SequenceStep> prefill,
                               const View& hidden,
                               Recorder& recorder,
                               int repetitions);

 private:
  struct DecodeGraph {
    int64_t requests = 0;
    int64_t pages = 0;
    std::unique_ptr<Graph> graph;
    ForwardOut out;
    View choices;
  };

  GpuRunner(const Model& model, std::span<const View> kv, Exec& ex, const GpuRunnerShape& shape);

  Status allocate();
  Result<Batch> place(Batch batch);
  Status forward(const Batch& batch, ForwardOut& out);
  DecodeGraph* graph_of(const DecodePadding& shape);
  Status capture(DecodeGraph& entry);

  /// What a pass gives to the stream, on the same memory each time.
  using Pass = std::function<Status()>;
  Result<Graph> capture_pass(const Pass& pass,
                             SideStream* side,
                             Recorder* recorder,
                             StreamMarks* marks);
  Result<TimedStep> time_pass(const Pass& pass, Recorder& recorder, int repetitions);
  Result<double> time_graph(Graph& graph);

  const Model& model_;
  std::span<const View> kv_;
  Exec& ex_;
  GpuRunnerShape shape_;
  BatchBuffer batch_;
  Buffer pinned_;    // metadata on its way to the GPU
  Buffer metadata_;  // and there
  Buffer results_;   // pinned: choices, then logits
  int64_t logits_at_ = 0;
  std::vector<GreedyChoice> greedy_;
  std::vector<std::unique_ptr<DecodeGraph>> graphs_;
  // The step between start and finish.
  Batch current_;
  ForwardOut out_;
  View choices_;  // [2, R] i32: ids, then whether the row is bad
  DecodeGraph* to_capture_ = nullptr;
};

}  // namespace fathom
