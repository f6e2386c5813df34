// The scheduler decides what each step computes. Pure logic: it moves sequences between states and
// blocks between owners, and knows neither model nor clock nor device.
//
// A step holds the next tokens of every running sequence that decodes (one, and those of its drafts
// that fit), and chunks of prompts within the rest of the token budget, oldest first.
//
//   fairness     Decodes and prompts wait for each other by a step at most. While sequences decode,
//                the caller limits the prompt tokens of a step by what it measured them to take
//                (EngineCore: --step-target-ms), and never to fewer than 16, so prompts go on.
//                Without decodes the whole budget is theirs. Prompts whose rest fits half of what a
//                step has for prompts pass the long ones before them; these have the other half, so
//                none waits for ever. Admission keeps the order of arrival. Measured: while a
//                prompt of 32k tokens is computed in 1.9 s, 16 streams of eight layers of R1 get a
//                token every 97 ms instead of 5 (docs/performance.md, Serving).
//   admission    in order of arrival; needs blocks for all tokens so far and one step more, above a
//                reserve of 2 % of the pool (no reserve when nothing runs). Its blocks are taken at
//                once, so a prompt never stops half way.
//   growth       a decode that needs a block and finds none evicts cached blocks (oldest first),
//                then preempts the newest running sequence, whose tokens are computed again later.
//                The oldest is never preempted; those preempted 8 times are chosen last. Drafts
//                preempt nobody: those without room are dropped.
//   snapshots    a model that keeps rings or states besides has them copied where the last whole
//                block of a prompt ends, so that its prefix can be found again; the chunk ends
//                there
//   scores       a sequence whose prompt is scored is computed without the prefix cache up to the
//                last token that was not scored yet, in chunks of at most the rows of logits that a
//                step has room for: one for every sequence that runs or waits, and what is left
//                of max_num_seqs for the first that is scored
//   refusal      a request that does not fit the empty pool is refused at once.
//
// So the oldest sequence always progresses, every sequence becomes the oldest, and each ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/runtime/kv/page_pool.h"
#include "fathom/runtime/kv/prefix_cache.h"
#include "fathom/runtime/request.h"

namespace fathom {

struct SchedulerOptions {
  int64_t max_num_seqs = 8;
  int64_t max_num_batched_tokens = 512;  ///< of one step; at least max_num_seqs
  int64_t max_prefill_chunk = 0;         ///< of one request in one step; 0: the whole budget
  int64_t max_model_len = 0;             ///< prompt and answer; positive
  int64_t max_queue = 1024;
  int64_t max_waiting_tokens = 8'388'608;
  double page_reserve = 0.02;  ///< share of the pool that admission leaves alone
  int32_t preemption_limit = 8;
  /// Whether pages with decoded tokens may be shared. Only where a token has the same bits however
  /// it was computed (`--batch-invariant`): absorbed decode leaves other bits than prefill.
  bool share_decoded_pages = false;
  bool trees = false;  ///< drafts may be trees, which may take blocks of their own
};

/// Tokens [begin, begin + count) of a sequence, to be computed in this step.
struct StepItem {
  Sequence* sequence = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
  bool yields_token = false;  ///< the step reaches the last token, so its logits are wanted
  bool all_logits = false;    ///< the logits of all its tokens are wanted: the prompt is scored

  /// Tokens behind the last known one: drafts, to be verified.
  int64_t num_drafts() const;
};

struct StepPlan {
  std::vector<StepItem> prefill;
  std::vector<StepItem> decode;       ///< one token each, and drafts
  std::vector<SlotCopy> slot_copies;  ///< to be made before the step, in order
  int64_t num_tokens = 0;

  bool empty() const { return num_tokens == 0; }
};

struct SchedulerStats {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t waiting_tokens = 0;
  int64_t num_admissions = 0;  ///< repeated ones after preemption included
  int64_t num_preemptions = 0;
};

/// Not thread-safe. Sequences belong to the caller and must live until they are finished and the
/// step in which that happened has ended.
class Scheduler {
 public:
  /// `cache` may be null: no prefix is reused. Options are checked by the caller.
  Scheduler(const SchedulerOptions& options, CachePools& pools, PrefixCache* cache);

  /// Whether a request of these lengths can ever run. Reads only what never changes, so any thread
  /// may ask. Errors: InvalidArgument for an empty prompt, `context_length_exceeded` and
  /// `too_large_for_pool`.
  Status admissible(int64_t prompt_length, int64_t max_tokens) const;

  /// Queues a new sequence (tokens, prompt_length, max_tokens set). Errors, none of which changes
  /// anything: those of admissible(); Overloaded `queue_full`.
  Status submit(Sequence& sequence);

  /// Takes room for drafts of a sequence that decodes: how many of `most` fit, behind its next
  /// token, without taking a block that another sequence may need for its own next token. What the
  /// next step does not use goes back with it. Between steps.
  int64_t make_draft_room(Sequence& sequence, int64_t most);

  /// The fewest prompt tokens that plan() may be limited to.
  static constexpr int64_t kLeastPrefill = 16;

  /// Plans the next step. Valid until finish_step(). Empty only when there is nothing to do.
  /// `prefill_limit`: prompt tokens of the step at most, if any sequence decodes in it; at least
  /// kLeastPrefill.
  const StepPlan& plan(int64_t prefill_limit = INT64_MAX);

  /// The item was computed and, where it yields any, gave these tokens: drafts that were right, in
  /// order, and one more. `finish` says whether the sequence ends with the last of them. Appends
  /// them, cuts the cache back behind what is right, offers complete blocks to the prefix cache,
  /// releases what ended. An item of a sequence that was aborted meanwhile is ignored.
  void commit(const StepItem& item, std::span<const int32_t> tokens, FinishReason finish);

  /// The item gave no token, as its logits were not finite or nothing was allowed: the sequence
  /// ends, none of its blocks is shared from now on.
  void commit_failed(const StepItem& item, FinishReason reason = FinishReason::kNumericalError);

  /// Ends the step: sequences aborted during it give back their pages now.
  void finish_step();

  /// Ends a sequence from outside. Its pages are free at once, or at finish_step() while a planned
  /// step refers to them. Nothing happens to a finished one, so it may be called twice. True if
  /// this call ended it.
  bool abort(Sequence& sequence, FinishReason reason);

  /// Appends the sequences whose time is over at `now_ns` to `out`, with the reason.
  struct Expired {
    Sequence* sequence;
    FinishReason reason;
  };

  void find_expired(int64_t now_ns, std::vector<Expired>& out) const;

  bool idle() const { return running_.empty() && waiting_.empty(); }

  SchedulerStats stats() const;

  const std::vector<Sequence*>& running() const { return running_; }

  const std::vector<Sequence*>& waiting() const { return waiting_; }

  /// Blocks that the empty pool must have for a request.
  int64_t blocks_needed(int64_t prompt_length, int64_t max_tokens) const {
    return pools_.blocks_for(prompt_length + max_tokens);
  }

 private:
  void plan_running();
  void plan_prefill(Sequence& sequence);
  int64_t chunk_of(const Sequence& sequence, int64_t budget) const;
  void set_prefill_budget(int64_t prefill_limit);
  bool passes(int64_t left, int64_t& room) const;
  void fill_up();
  void plan_decode(Sequence& sequence);
  void admit();
  bool try_admit(Sequence& sequence);
  bool make_room(size_t index, size_t& next);
  size_t choose_victim() const;
  void preempt(size_t index);
  void drop_planned(const Sequence& sequence);
  int64_t drafts_with_room(const Sequence& sequence, int64_t most) const;
  int64_t blocks_with_drafts(const Sequence& sequence, int64_t drafts) const;
  int64_t scored_chunk(const Sequence& sequence) const;
  int64_t snapshot_end(const Sequence& sequence) const;
  void offer_blocks(Sequence& sequence);
  void take_snapshot(Sequence& sequence);
  void offer_snapshot(Sequence& sequence);
  void drop_snapshot(Sequence& sequence);
  void finish(Sequence& sequence, FinishReason reason);
  void enqueue(Sequence& sequence);

  SchedulerOptions options_;
  CachePools& pools_;
  PrefixCache* cache_;
  int64_t reserve_blocks_;
  uint64_t next_order_ = 0;
  std::vector<Sequence*> running_;  // by order of arrival
  std::vector<Sequence*> waiting_;  // by order of arrival
  int64_t waiting_tokens_ = 0;
  StepPlan plan_;
  std::vector<SlotCopy> next_copies_;      // for the next plan
  std::vector<PageId> resumed_snapshots_;  // owned until the step that copies them has ended
  // What is left while planning: of the step's tokens behind one for each decode; of them, for
  // prompts; of that, for short prompts that pass long ones, and what of it was set aside.
  int64_t token_budget_ = 0;
  int64_t prefill_budget_ = 0;
  int64_t short_room_ = 0;
  int64_t set_aside_ = 0;
  int64_t spare_rows_ = 0;         // of logits, behind one for each sequence
  Sequence* held_back_ = nullptr;  // the first prompt that left room for them
  bool preempted_ = false;         // in the plan being made
  bool in_step_ = false;
  int64_t num_admissions_ = 0;
  int64_t num_preemptions_ = 0;
};

}  // namespace fathom
