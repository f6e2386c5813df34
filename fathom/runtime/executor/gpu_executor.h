// Steps on a GPU. The host makes the metadata of a step (ids, positions, slots, tables), sends it
// in one copy from pinned memory, gives the work to the stream, and waits once, in collect():
//
//   submit()   metadata -> pinned -> GPU; forward pass, sampling
//   collect()  what is wanted back -> pinned; waits
//
// Steps that only decode, each sequence as many tokens, have one of few shapes (decode_shapes.h).
// After the first step of a shape its work is captured as a graph, which every later one replays:
// all that changes is in the metadata.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fathom/device/graph.h"
#include "fathom/device/stream_marks.h"
#include "fathom/runtime/executor/executor.h"

namespace fathom {

class GpuExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<Executor>> create(const Model& model,
                                                  const Compute& compute,
                                                  ExecutorSettings settings);

  Result<TimedStep> time(const Step& step, Recorder& recorder, int repetitions) override;

  bool works_apart() const override { return true; }

  int64_t num_graphs() const override { return static_cast<int64_t>(graphs_.size()); }

 protected:
  Status submit(const Step& step) override;
  Result<StepResults> collect() override;

 private:
  // What follows the pass of a step: nothing, the largest logit of each row, or whatever a row asks
  // for, which is two kernels for all rows, and one more where a row has a mask.
  enum class Sampling : uint8_t { kNone, kLargest, kAny, kMasked };

  // What tells captured steps apart.
  struct GraphKey {
    int64_t requests = 0;
    int64_t queries = 0;
    int64_t pages = 0;
    Sampling sampling = Sampling::kNone;
    bool trees = false;

    friend bool operator==(const GraphKey&, const GraphKey&) = default;
  };

  struct DecodeGraph {
    GraphKey key;
    std::unique_ptr<Graph> graph;
    ForwardOut out;
    View choices;
  };

  GpuExecutor(const Model& model, const Compute& compute, ExecutorSettings settings);

  Status allocate_transfers();
  Result<Batch> place(Batch batch);
  Status place_samples(int64_t num_rows);
  Status grow_sample_room(const SampleRoom& needed);
  Status pass(const Step& step, Batch& batch, ForwardOut& out);
  Status fetch_raw_rows(const ForwardOut& out);
  Status launch_pass(const Step& step);
  DecodeGraph* graph_of(const GraphKey& key);
  Status capture(DecodeGraph& entry);
  Status wait();
  Status fetch_tokens();
  Result<View> fetch_logits();

  /// What a step gives to the stream, on the same memory each time.
  using Work = std::function<Status()>;
  Result<Graph> capture_work(const Work& work,
                             SideStream* side,
                             Recorder* recorder,
                             StreamMarks* marks);
  Result<TimedStep> time_work(const Work& work, Recorder& recorder, int repetitions);
  Result<double> time_graph(Graph& graph);

  int64_t block_tokens_ = 1;  // of the layout of the cache
  Buffer pinned_;             // metadata on its way to the GPU
  Buffer metadata_;           // and there
  Buffer results_;            // pinned: choices, then logits
  int64_t logits_at_ = 0;
  Buffer sample_block_;     // pinned: what rows ask for, on its way to the GPU
  Buffer sample_metadata_;  // and there
  SampleRoom sample_room_;
  std::vector<SampleResult> samples_;
  std::vector<const float*> raw_;  // rows of logits in results_, of rows that ask for them
  Logprobs logprobs_;
  std::vector<std::unique_ptr<DecodeGraph>> graphs_;
  std::vector<View> slots_;  // of the batch on the GPU
  std::vector<PooledRows> pooled_;
  // The step between submit and collect.
  Step step_;
  Batch current_;
  ForwardOut out_;
  Sampling sampling_ = Sampling::kNone;
  SampleBatch sample_batch_;
  View choices_;  // [2, R] i32: ids, then whether the row is bad
  DecodeGraph* to_capture_ = nullptr;
};

}  // namespace fathom
