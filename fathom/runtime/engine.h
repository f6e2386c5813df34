// EngineCore: the step loop. It owns pages, prefix cache, scheduler and arenas, and follows each
// request from submit() to its last event. One thread calls everything here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/base/status.h"
#include "fathom/models/model.h"
#include "fathom/os/clock.h"
#include "fathom/runtime/draft/draft_balance.h"
#include "fathom/runtime/draft/proposer.h"
#include "fathom/runtime/executor/executor.h"
#include "fathom/runtime/held_events.h"
#include "fathom/runtime/memory_plan.h"
#include "fathom/runtime/request.h"
#include "fathom/runtime/sample/stop.h"
#include "fathom/runtime/scheduler.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

struct CoreSettings {
  SchedulerOptions scheduler;  ///< its limits of a step and of the context come from the plan
  MemoryPlan plan;
  bool prefix_cache = true;
  std::string model_fingerprint;  ///< digest of configuration and weights
  uint64_t seed = 0;              ///< of requests without one
  std::vector<int32_t> end_ids;   ///< the model's end tokens
  /// What a step should take while sequences decode: prompts are cut so. 0: as long as it takes.
  int64_t step_target_ns = 0;
  CudaGraphs cuda_graphs = CudaGraphs::kOn;
  /// Guesses tokens to come, as many as the plan has room for (StepShape::max_queries); null: none.
  /// It outlives the engine.
  Proposer* proposer = nullptr;
  bool adaptive_drafts = true;  ///< guess only where measured times and counts say that it gains
  /// Takes each guess with this probability, whatever was drawn: for benchmarks of models whose
  /// guesses mean nothing. What comes out is not the model's text then.
  std::optional<double> simulated_acceptance;
  SpecialTokens special_tokens = SpecialTokens::kSkip;
  Pins pins;
};

struct CoreStats {
  SchedulerStats scheduler;
  PrefixCacheStats prefix;
  int64_t num_pages = 0;
  int64_t owned_pages = 0;
  int64_t private_pages = 0;
  int64_t cached_pages = 0;
  int64_t num_steps = 0;
  int64_t prompt_tokens = 0;  ///< computed, repeated ones included
  int64_t generated_tokens = 0;
  int64_t drafted_tokens = 0;   ///< computed as drafts
  int64_t accepted_tokens = 0;  ///< of them, those that were right
  int64_t most_drafts = 0;      ///< one behind the other in a step; 0: nothing is drafted
  int64_t num_drafts = 0;       ///< times that a sequence had drafts in a step
  std::array<int64_t, kMostDrafts> accepted_at{};  ///< of the drafts of each place, those right
  int64_t draft_pauses = 0;  ///< times that a request paused drafting because it lost time by it
  /// Beside more sequences nothing gains by drafts, as measured; -1: by any number, or not known.
  int64_t draft_batch_limit = -1;
  int64_t numerical_errors = 0;  ///< requests that ended for logits that are not finite
};

class EngineCore {
 public:
  /// Allocates the memory of the plan. The model lies where `compute` is; it, tokenizer and clock
  /// outlive the engine; tokenizer may be null (no text, no stop strings). Errors: OutOfMemory.
  static Result<std::unique_ptr<EngineCore>> create(CoreSettings settings,
                                                    const Model& model,
                                                    const Compute& compute,
                                                    const Tokenizer* tokenizer,
                                                    const Clock& clock);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  /// Everything that submit() refuses a request for but a full queue and a fault. Reads only what
  /// never changes, so any thread may ask. Errors: InvalidArgument for an empty prompt, ids and
  /// parameters out of range, `context_length_exceeded` and `too_large_for_pool`.
  Status admissible(const Request& request) const;

  /// Checks a request and queues it. Its callback gets every token and, exactly once and last, an
  /// event with a finish reason. Errors, after which no callback comes: those of admissible();
  /// Overloaded `queue_full`; DeviceLost after an engine fault.
  Result<RequestId> submit(Request request);

  /// One step: expires, plans, computes, samples, tells. Does nothing when idle. Errors: an engine
  /// fault; all requests have ended with it, and the engine refuses further work.
  Status step();

  /// The two halves of step(), for those who have work of their own while a GPU computes: they may
  /// submit() and cancel() between them, and nothing else. Where the device works by itself, the
  /// tokens of a step are told in the first half of the next one, behind its launch, or at the end
  /// of the step if no other follows. finish_step() does nothing where start_step() began nothing
  /// or failed.
  Status start_step();
  Status finish_step();

  /// Ends a request; its callback gets the reason before this returns. Its pages are free at once,
  /// or at the end of the running step. False for an id that is not (or no longer) known.
  bool cancel(RequestId id, FinishReason reason = FinishReason::kAborted);

  bool idle() const { return scheduler_.idle(); }

  /// Tokens that a prompt of that length may be followed by when its request does not say. Any
  /// thread may ask.
  int64_t default_max_tokens(int64_t prompt_length) const;

  /// Forgets all cached prefixes.
  void drop_prefix_cache() {
    if (cache_ != nullptr) cache_->clear();
  }

  /// Told what the prefix cache can find; null: nobody. It outlives the engine.
  void set_prefix_observer(PrefixObserver* observer) {
    if (cache_ != nullptr) cache_->set_observer(observer);
  }

  CoreStats stats() const;

  const CoreSettings& settings() const { return settings_; }

  /// Ops are recorded here; null: not.
  void set_recorder(Recorder* recorder) { executor_->set_recorder(recorder); }

 private:
  struct ActiveRequest;
  class Busy;

  // A token of a sequence and what came of it.
  struct Accepted {
    int32_t token = -1;
    float logprob = 0.0f;
    std::span<const TokenLogprob> top_logprobs;
    StopOutcome outcome;
    std::string text;  // outcome.text of tokens that others follow
  };

  EngineCore(CoreSettings settings,
             const Model& model,
             const Tokenizer* tokenizer,
             const Clock& clock);

  // Of a sequence in a step.
  int64_t most_drafts() const { return settings_.plan.shape.max_queries - 1; }

  int64_t max_tokens_of(const Request& request) const;
  SampleRow sample_row(const ActiveRequest& request, int64_t ahead) const;
  void add_scored_rows(const StepItem& item);
  bool take_scores(const StepItem& item, std::span<const SampleResult> results);
  void constrain(SampleRow& row, ActiveRequest& request, int64_t ahead);
  int64_t room_from(const ActiveRequest& request, int64_t begin) const;
  bool constrain_guess(SampleRow& row, ActiveRequest& request, std::span<const int32_t> tokens);
  std::span<const int32_t> add_tree(const ActiveRequest& request, int64_t drafts);
  void add_moves(const ActiveRequest& request, const StepItem& item);
  void add_sampled_rows(ActiveRequest& request, int64_t drafts);
  int64_t prefill_limit() const;
  void measure(const StepPlan& plan, int64_t step_ns);
  void expire();
  Status propose();
  SampleRow guess_row(const ActiveRequest& request, int64_t ahead) const;
  Status find_paths();
  Status follow(const View& hidden);
  void keep_results();
  void add_computed(const StepItem& item,
                    std::span<const SampleResult> results,
                    int64_t hidden_row);
  bool gains_by_drafts(ActiveRequest& request, int64_t batch);
  bool is_right(int32_t guess, int32_t drawn);
  int64_t draft_batch_limit() const;
  void count_drafts(ActiveRequest& request, int64_t drafts, int64_t accepted);
  bool walk_to(ActiveRequest& request, int32_t draft);
  void walk_back(ActiveRequest& request);
  void keep_useful_drafts(ActiveRequest& request);
  Status start(const StepPlan& plan);
  void add_item(const StepItem& item, std::vector<SequenceStep>& steps);
  void commit(const StepPlan& plan);
  void commit_tokens(const StepItem& item, std::span<const SampleResult> results);
  int64_t accept(ActiveRequest& request, std::span<const SampleResult> results);
  static void refused(const ActiveRequest& request, Accepted& accepted);
  void fail(ActiveRequest& request, const StepItem& item);
  void end_plan();
  Status fault(Status status);
  void end(ActiveRequest& request, FinishReason reason);
  void tell(ActiveRequest& request, const TokenEvent& event);
  void bury(ActiveRequest& request);

  CoreSettings settings_;
  const Model& model_;
  const Tokenizer* tokenizer_;
  const Clock& clock_;
  CachePools pools_;
  std::unique_ptr<PrefixCache> cache_;
  Scheduler scheduler_;
  std::unique_ptr<Executor> executor_;
  HeldEvents held_;
  // The step that is being computed.
  const StepPlan* plan_ = nullptr;  // null between steps
  int64_t step_begin_ns_ = 0;
  std::vector<SequenceStep> prefill_;
  std::vector<SequenceStep> decode_;
  std::vector<SampleRow> rows_;
  std::vector<DraftPlace> draft_places_;
  // What the proposer follows: the step, and its results, whose place its passes take.
  std::vector<ComputedTokens> computed_;
  std::vector<int32_t> next_tokens_;
  std::vector<int32_t> hidden_rows_;
  std::vector<SampleResult> kept_results_;
  std::vector<TokenLogprob> kept_logprobs_;
  int64_t follow_ns_ = 0;         // of the last step that only decoded
  std::vector<int32_t> drafted_;  // tokens of items with drafts, one behind the other
  std::vector<int32_t> parents_;  // of the rows of those that are trees
  std::vector<int32_t> depths_;   // of the rows of an item, in its tree
  std::vector<int32_t> kept_;     // of the drafts of a request, where those go that stay
  std::vector<int32_t> walked_;   // drafts that a constraint has followed from the last known token
  RowMoves moves_{settings_.plan.cache};  // rows of the cache that are right
  TreeRows tree_;                         // of an item
  std::vector<int32_t> tree_path_;        // of it, the rows that are right
  std::vector<uint32_t> masks_;           // a mask for each row of a step
  size_t num_masks_ = 0;                  // of the step so far
  std::span<const SampleResult> results_;
  std::vector<Accepted> accepted_;
  std::vector<int32_t> accepted_ids_;
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  // Ended requests live on until nobody can be inside their callbacks or the plan.
  std::vector<std::unique_ptr<ActiveRequest>> graveyard_;
  std::vector<Scheduler::Expired> expired_;
  RequestId next_id_ = 1;
  int busy_ = 0;
  bool faulted_ = false;
  // Exponential means: of steps that only decode, and of a prompt token in the others.
  double decode_step_ns_ = 0;
  double prompt_token_ns_ = 0;
  int64_t num_steps_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t generated_tokens_ = 0;
  int64_t drafted_tokens_ = 0;
  int64_t accepted_tokens_ = 0;
  DraftBalance balance_;
  Rng simulation_{0};    // of simulated acceptance
  DraftGain mean_gain_;  // of all requests
  int64_t num_drafts_ = 0;
  std::array<int64_t, kMostDrafts> accepted_at_{};
  int64_t draft_pauses_ = 0;
  int64_t num_held_back_ = 0;  // times that a request did not draft for the size of the batch
  int64_t numerical_errors_ = 0;
};

}  // namespace fathom
