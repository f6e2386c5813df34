// Steps on a GPU. The host makes the metadata of a step (ids, positions, slots, tables), sends it
// in one copy from pinned memory, gives the work to the stream, and waits once, in collect():
//
//   submit()   metadata -> pinned -> GPU; forward pass, sampling
//   collect()  what is wanted back -> pinned; waits
//
// Steps that only decode, each sequence as many tokens, have one of few shapes (decode_shapes.h).
// After the first step of a shape its work is captured as a graph, which every later one replays:
// all that changes is in the metadata. That of a chain of draft passes goes there for all of them
// at once; ids and states, of trees also paths and masks, go from pass to pass on the GPU, and the
// host waits for the last.
//
// Log-probabilities are found where the logits are, the best tokens of each row (top_logprobs), in
// captured steps as well. Rows that need more have their raw logits copied back, pass by pass.
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

  Status move_rows(RowMoves& moves) override;

  bool works_apart() const override { return true; }

  bool captures_steps() const override { return settings_.graphs == CudaGraphs::kOn; }

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
    Step::Pass pass = Step::Pass::kForward;
    int64_t chain = 1;
    int64_t requests = 0;
    int64_t queries = 0;
    int64_t pages = 0;
    int64_t logits = 0;  // rows of each pass
    Sampling sampling = Sampling::kNone;
    bool best = false;  // tokens of each row are found, with log-probabilities
    bool trees = false;

    friend bool operator==(const GraphKey&, const GraphKey&) = default;
  };

  // A pass of the step, with its arrays on the GPU.
  struct Pass {
    Batch batch;
    std::vector<View> slots;
    std::vector<PooledRows> pooled;
  };

  struct DecodeGraph {
    GraphKey key;
    std::unique_ptr<Graph> graph;
    ForwardOut out;
    View choices;
    View best;
  };

  GpuExecutor(const Model& model, const Compute& compute, ExecutorSettings settings);

  Status allocate_transfers();
  Status place_step(const Step& step, const DecodePadding& padding);
  void place_pass(const Batch& host, Pass& pass, const TokenRange* shared);
  void place(View& v);
  Status place_samples(int64_t num_rows);
  Status grow_sample_room(const SampleRoom& needed);
  std::span<const SampleRow> padded_samples(int64_t num_rows);
  bool may_be_captured(const Step& step, const DecodePadding& padding) const;
  Status run_passes(const Step& step, ForwardOut& out);
  Status run_pass(const Step& step, int64_t pass, ForwardOut& out);
  View choices_of(int64_t pass, int64_t what) const;
  int64_t num_best() const;
  View best_of(int64_t pass, bool ids) const;
  Status find_best(int64_t pass, const ForwardOut& out);
  Status place_levels(const Step& step, int64_t rows);
  Level level_of(int64_t pass) const;
  Status choose_behind(int64_t pass);
  Status fetch_raw_rows(const ForwardOut& out);
  Status launch_pass(const Step& step);
  DecodeGraph* graph_of(const GraphKey& key);
  Status capture(DecodeGraph& entry);
  Status wait();
  Status fetch_tokens();
  Status add_best(const int32_t* numbers, int64_t rows);
  Result<View> fetch_logits();

  /// What a step gives to the stream, on the same memory each time.
  using Work = std::function<Status()>;
  Result<Graph> capture_work(const Work& work,
                             SideStreams* sides,
                             Recorder* recorder,
                             StreamMarks* marks);
  Result<TimedStep> time_work(const Work& work, Recorder& recorder, int repetitions);
  Result<double> time_graph(Graph& graph);

  Buffer pinned_;    // metadata on its way to the GPU
  Buffer metadata_;  // and there
  Buffer results_;   // pinned: choices and best tokens, then logits
  int64_t logits_at_ = 0;
  Buffer sample_block_;     // pinned: what rows ask for, on its way to the GPU
  Buffer sample_metadata_;  // and there
  SampleRoom sample_room_;
  std::vector<SampleResult> samples_;
  std::vector<const float*> raw_;  // rows of logits in results_, of rows that need them
  std::vector<size_t> not_best_;   // rows whose token is none of their best
  Logprobs logprobs_;
  std::vector<std::unique_ptr<DecodeGraph>> graphs_;
  std::vector<SampleRow> padded_samples_;  // of a chain
  // The step between submit and collect.
  Step step_;
  std::vector<Pass> passes_;  // as many as the longest chain; the step has the first ones
  int64_t placed_ = 0;        // bytes of metadata
  ForwardOut out_;            // of the last pass
  Sampling sampling_ = Sampling::kNone;
  bool wants_best_ = false;  // some row needs best tokens; of chains, in those of levels
  SampleBatch sample_batch_;
  View choices_;  // [2*chain, R] i32: ids of a pass, then whether the row is bad
  // [chain*(2*K+1), R] of four bytes: ids [R,K] of each pass, log-probabilities [R,K] of each,
  // largest logits of each.
  View best_;
  View node_paths_view_;  // of the first level of a chain of them, in the metadata
  View levels_;           // [3*(chain-1), R] i32: tokens, rows and paths of each level behind it
  View level_masks_;      // [chain-1, R] i64
  DecodeGraph* to_capture_ = nullptr;
};

}  // namespace fathom
