#include "fathom/runtime/scheduler.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

bool by_order(const Sequence* a, const Sequence* b) {
  return a->order < b->order;
}

void insert_by_order(std::vector<Sequence*>& list, Sequence& sequence) {
  list.insert(std::ranges::upper_bound(list, &sequence, by_order), &sequence);
}

bool erase_from(std::vector<Sequence*>& list, const Sequence& sequence) {
  const auto found = std::ranges::find(list, &sequence);
  if (found == list.end()) return false;
  list.erase(found);
  return true;
}

}  // namespace

int64_t StepItem::num_drafts() const {
  return std::max<int64_t>(begin + count - sequence->num_tokens(), 0);
}

Scheduler::Scheduler(const SchedulerOptions& options, CachePools& pools, PrefixCache* cache)
    : options_(options),
      pools_(pools),
      cache_(cache),
      reserve_blocks_(static_cast<int64_t>(
          std::ceil(options.page_reserve * static_cast<double>(pools.blocks.num_pages())))) {
  FATHOM_CHECK(options.max_num_seqs > 0 && options.max_model_len > 0, "limits must be positive");
  FATHOM_CHECK(options.max_num_batched_tokens >= options.max_num_seqs,
               "a step must have room for one token of each running sequence");
  const auto seqs = static_cast<size_t>(options.max_num_seqs);
  running_.reserve(seqs);
  plan_.prefill.reserve(seqs);
  plan_.decode.reserve(seqs);
  if (!pools.has_slots()) return;
  plan_.slot_copies.reserve(2 * seqs);
  next_copies_.reserve(2 * seqs);
  resumed_snapshots_.reserve(seqs);
}

Status Scheduler::admissible(int64_t prompt_length, int64_t max_tokens) const {
  if (prompt_length < 1) {
    return invalid_argument("the prompt is empty, expected at least one token");
  }
  // As a difference: the sum of numbers from outside may be none.
  if (max_tokens > options_.max_model_len - prompt_length) {
    return invalid_argument(str_cat("context_length_exceeded: prompt of ", prompt_length,
                                    " tokens and max_tokens ", max_tokens, ", expected at most ",
                                    options_.max_model_len, " together (--max-model-len)"));
  }
  if (const int64_t blocks = blocks_needed(prompt_length, max_tokens);
      blocks > pools_.blocks.num_pages()) {
    return invalid_argument(str_cat("too_large_for_pool: prompt of ", prompt_length,
                                    " tokens and max_tokens ", max_tokens, " need ", blocks,
                                    " pages of ", pools_.block_tokens,
                                    " tokens, the whole KV cache has ", pools_.blocks.num_pages()));
  }
  return {};
}

Status Scheduler::submit(Sequence& s) {
  FATHOM_CHECK(s.state == SequenceState::kNew, "a sequence is submitted once");
  FATHOM_TRY(admissible(s.prompt_length, s.max_tokens));
  const int64_t total = s.prompt_length + s.max_tokens;
  if (static_cast<int64_t>(waiting_.size()) >= options_.max_queue) {
    return overloaded(str_cat("queue_full: ", waiting_.size(), " requests are waiting, at most ",
                              options_.max_queue, " may (--max-queue)"));
  }
  if (waiting_tokens_ + s.num_tokens() > options_.max_waiting_tokens) {
    return overloaded(str_cat("queue_full: ", waiting_tokens_, " prompt tokens are waiting, ",
                              s.num_tokens(), " more exceed ", options_.max_waiting_tokens));
  }
  s.order = next_order_++;
  s.tokens.reserve(static_cast<size_t>(total));
  s.cache.reserve_blocks(pools_.blocks_for(total));
  if (cache_ != nullptr) {
    s.root = cache_->root(s.cache_salt);
    s.keys.reserve(static_cast<size_t>(pools_.blocks_for(total)));
  }
  enqueue(s);
  return {};
}

void Scheduler::enqueue(Sequence& s) {
  s.state = SequenceState::kWaiting;
  waiting_tokens_ += s.num_tokens();
  insert_by_order(waiting_, s);
}

const StepPlan& Scheduler::plan(int64_t prefill_limit) {
  FATHOM_CHECK(!in_step_, "a step is planned when the one before is finished");
  plan_.prefill.clear();
  plan_.decode.clear();
  plan_.slot_copies.assign(next_copies_.begin(), next_copies_.end());
  next_copies_.clear();
  preempted_ = false;
  set_prefill_budget(prefill_limit);
  plan_running();
  if (!preempted_) admit();
  fill_up();

  plan_.num_tokens = 0;
  for (const auto* items : {&plan_.prefill, &plan_.decode}) {
    for (const StepItem& item : *items) {
      item.sequence->in_flight = true;
      plan_.num_tokens += item.count;
    }
  }
  in_step_ = !plan_.empty();
  if (!in_step_) next_copies_.swap(plan_.slot_copies);  // nothing runs that could make them
  FATHOM_CHECK(in_step_ || idle(), "sequences are waiting, but the step is empty");
  return plan_;
}

void Scheduler::set_prefill_budget(int64_t prefill_limit) {
  const auto decoding = static_cast<int64_t>(
      std::ranges::count_if(running_, [](const Sequence* s) { return !s->prefilling; }));
  token_budget_ = options_.max_num_batched_tokens - decoding;
  prefill_budget_ = token_budget_;
  if (decoding > 0)
    prefill_budget_ = std::min(token_budget_, std::max(prefill_limit, kLeastPrefill));
  const auto known = static_cast<int64_t>(running_.size() + waiting_.size());
  spare_rows_ = std::max<int64_t>(options_.max_num_seqs - known, 0);
  short_room_ = prefill_budget_ / 2;
  set_aside_ = 0;
  held_back_ = nullptr;
  // What the prompts that pass will take. Of those that wait, the first ones as long as they do;
  // how much of them is cached is not known yet.
  int64_t room = short_room_;
  for (const Sequence* s : running_) {
    const int64_t left = s->num_tokens() - s->num_computed;
    if (s->prefilling && passes(left, room)) set_aside_ += left;
  }
  const auto seats = static_cast<size_t>(options_.max_num_seqs) - running_.size();
  for (size_t i = 0; i < std::min(seats, waiting_.size()); ++i) {
    if (!passes(waiting_[i]->num_tokens(), room)) break;
    set_aside_ += waiting_[i]->num_tokens();
  }
}

// Whether a prompt with so much left is a short one in this step; takes its part of the room then.
bool Scheduler::passes(int64_t left, int64_t& room) const {
  if (left > room) return false;
  room -= left;
  return true;
}

// Oldest first, so that room is made for the old at the cost of the new.
void Scheduler::plan_running() {
  for (size_t i = 0; i < running_.size();) {
    Sequence& s = *running_[i];
    size_t next = i + 1;
    if (s.prefilling) {
      plan_prefill(s);
    } else if (make_room(i, next)) {
      plan_decode(s);
    }
    i = next;
  }
}

// Tokens of a prompt that go into a step with so much room.
int64_t Scheduler::chunk_of(const Sequence& s, int64_t budget) const {
  const int64_t left = s.num_tokens() - s.num_computed;
  const int64_t chunk = options_.max_prefill_chunk > 0 ? options_.max_prefill_chunk : left;
  int64_t count = std::min({left, chunk, budget, scored_chunk(s)});
  if (const int64_t end = snapshot_end(s); s.num_computed < end) {
    count = std::min(count, end - s.num_computed);
  }
  return count;
}

void Scheduler::plan_prefill(Sequence& s) {
  const int64_t left = s.num_tokens() - s.num_computed;
  const int64_t budget = std::min(prefill_budget_, token_budget_);
  const bool is_short = passes(left, short_room_);
  if (is_short) set_aside_ = std::max<int64_t>(set_aside_ - left, 0);
  const int64_t count = chunk_of(s, is_short ? budget : budget - set_aside_);
  if (!is_short && held_back_ == nullptr && set_aside_ > 0) held_back_ = &s;
  if (count <= 0) return;
  prefill_budget_ -= count;
  token_budget_ -= count;
  const bool scored = s.num_computed >= s.num_scored && s.num_scored < s.num_to_score();
  if (scored) spare_rows_ -= count - 1;
  plan_.prefill.push_back({&s, s.num_computed, count, count == left, scored});
}

// Gives what was set aside and not taken to the first prompt that made room.
void Scheduler::fill_up() {
  const auto item = std::ranges::find(plan_.prefill, held_back_, &StepItem::sequence);
  if (held_back_ == nullptr || item == plan_.prefill.end() || item->all_logits) return;
  const int64_t more = std::max<int64_t>(std::min(prefill_budget_, token_budget_), 0);
  item->count = chunk_of(*held_back_, item->count + more);
  item->yields_token = item->count == held_back_->num_tokens() - held_back_->num_computed;
}

// Tokens from num_computed on that may go into one step for the sake of their logits. Those that
// have been scored before come first, without logits; nothing behind the prompt is scored.
int64_t Scheduler::scored_chunk(const Sequence& s) const {
  if (s.num_scored >= s.num_to_score()) return s.num_tokens();
  if (s.num_computed < s.num_scored) return s.num_scored - s.num_computed;
  return std::min(1 + spare_rows_, s.prompt_length - s.num_computed);
}

// Where the last whole block before the last token ends, if a snapshot is to be taken there: the
// last token is always computed.
int64_t Scheduler::snapshot_end(const Sequence& s) const {
  if (cache_ == nullptr || !pools_.has_slots()) return 0;
  return (s.num_tokens() - 1) / pools_.block_tokens * pools_.block_tokens;
}

void Scheduler::plan_decode(Sequence& s) {
  const int64_t wanted = std::min(static_cast<int64_t>(s.drafts.size()), token_budget_);
  const int64_t drafts = drafts_with_room(s, wanted);
  // A draft follows an earlier one, so the first ones of a tree are a tree.
  s.drafts.resize(static_cast<size_t>(drafts));
  if (!s.draft_parents.empty()) s.draft_parents.resize(static_cast<size_t>(drafts));
  token_budget_ -= drafts;
  const bool grown = s.cache.grow(pools_, blocks_with_drafts(s, drafts) * pools_.block_tokens);
  FATHOM_CHECK(grown, "room was asked for before");
  plan_.decode.push_back({&s, s.num_computed, 1 + drafts, true});
}

// Drafts are worth a step's tokens only while they preempt nobody, can be taken back, and the
// sequence may still become so long.
int64_t Scheduler::drafts_with_room(const Sequence& s, int64_t most) const {
  const int64_t left = s.prompt_length + s.max_tokens - s.num_tokens();
  int64_t drafts = std::max<int64_t>(std::min({most, left - 1, pools_.slack}), 0);
  const int64_t spoken_for = reserve_blocks_ + static_cast<int64_t>(running_.size()) - 1;
  const int64_t spare = std::max<int64_t>(pools_.blocks.num_free() - spoken_for, 0);
  const int64_t most_blocks = pools_.blocks_for(options_.max_model_len);
  const auto fits = [&](int64_t count) {
    const int64_t blocks = blocks_with_drafts(s, count);
    const int64_t tokens = blocks * pools_.block_tokens;
    return blocks <= most_blocks && s.cache.has_room(pools_, tokens) &&
           s.cache.missing(pools_, tokens) <= spare;
  };
  while (drafts > 0 && !fits(drafts))
    --drafts;
  return drafts;
}

// Of the last known token and its drafts; the rows of a tree that are pooled may need some of their
// own, until the step is over.
int64_t Scheduler::blocks_with_drafts(const Sequence& s, int64_t drafts) const {
  const int64_t rows = 1 + drafts;
  return options_.trees ? pools_.layout.blocks_for_tree(s.num_computed, rows)
                        : pools_.blocks_for(s.num_computed + rows);
}

int64_t Scheduler::make_draft_room(Sequence& s, int64_t most) {
  const int64_t drafts = drafts_with_room(s, most);
  if (drafts == 0) return 0;
  const bool grown = s.cache.grow(pools_, blocks_with_drafts(s, drafts) * pools_.block_tokens);
  FATHOM_CHECK(grown, "room was asked for before");
  return drafts;
}

// Sees to it that running_[index] has a block for its next token. False if it was itself preempted.
// `next` is where planning goes on; it moves when elements before it leave.
bool Scheduler::make_room(size_t index, size_t& next) {
  Sequence& s = *running_[index];
  while (!s.cache.grow(pools_, s.num_computed + 1)) {
    const size_t victim = choose_victim();
    const bool itself = running_[victim] == &s;
    preempt(victim);
    if (victim < next) --next;
    if (itself) return false;
  }
  return true;
}

// The newest sequence that was not preempted too often yet, else the newest; never the oldest.
size_t Scheduler::choose_victim() const {
  FATHOM_CHECK(running_.size() > 1, "the oldest sequence fits the pool by admission");
  for (size_t i = running_.size(); i-- > 1;) {
    if (running_[i]->num_preemptions < options_.preemption_limit) return i;
  }
  return running_.size() - 1;
}

void Scheduler::preempt(size_t index) {
  Sequence& s = *running_[index];
  drop_planned(s);
  drop_snapshot(s);
  running_.erase(running_.begin() + static_cast<int64_t>(index));
  s.cache.release_all(pools_);
  s.num_computed = 0;
  s.num_prefilled = 0;
  s.num_offered_blocks = 0;
  s.prefilling = true;
  s.drop_drafts();
  ++s.num_preemptions;
  ++num_preemptions_;
  preempted_ = true;
  enqueue(s);
}

void Scheduler::drop_planned(const Sequence& s) {
  const auto of_sequence = [&](const StepItem& item) { return item.sequence == &s; };
  std::erase_if(plan_.prefill, of_sequence);
  std::erase_if(plan_.decode, of_sequence);
}

void Scheduler::admit() {
  while (!waiting_.empty() && std::min(prefill_budget_, token_budget_) > 0 &&
         static_cast<int64_t>(running_.size()) < options_.max_num_seqs) {
    Sequence& s = *waiting_.front();
    if (!try_admit(s)) return;
    waiting_.erase(waiting_.begin());
    waiting_tokens_ -= s.num_tokens();
    s.state = SequenceState::kRunning;
    insert_by_order(running_, s);
    ++num_admissions_;
    plan_prefill(s);
  }
}

// Takes the blocks of the sequence, those of a known prefix included. False, with nothing changed,
// if too few are available.
bool Scheduler::try_admit(Sequence& s) {
  PrefixMatch known;
  if (cache_ != nullptr) {
    // The last token is always computed: its logits are wanted.
    const bool scoring = s.num_scored < s.num_to_score();
    const int64_t most = scoring ? s.num_scored : s.num_tokens() - 1;
    known = cache_->match(s.root, s.tokens, most, s.cache, s.keys);
  }
  const int64_t reserve = running_.empty() ? 0 : reserve_blocks_;
  const int64_t missing = s.cache.missing(pools_, s.num_tokens() + 1);
  if (missing > pools_.blocks.num_available() - reserve ||
      !s.cache.grow(pools_, s.num_tokens() + 1)) {
    s.cache.release_all(pools_);
    if (known.snapshot != kNoPage) pools_.slots.release(known.snapshot);
    return false;
  }
  if (known.snapshot != kNoPage) {
    plan_.slot_copies.push_back(s.cache.resume(known.snapshot));
    resumed_snapshots_.push_back(known.snapshot);
  }
  s.num_computed = known.tokens;
  s.num_prefilled = known.tokens;
  s.num_offered_blocks = known.tokens / pools_.block_tokens;
  s.prefilling = true;
  if (s.num_preemptions == 0) s.cached_tokens = known.tokens;
  if (cache_ != nullptr) cache_->count(s.num_tokens(), known.tokens);
  return true;
}

void Scheduler::commit(const StepItem& item, std::span<const int32_t> tokens, FinishReason reason) {
  Sequence& s = *item.sequence;
  if (s.abort_reason != FinishReason::kNone) return;  // finish_step() releases it
  const int64_t drafts = item.num_drafts();
  FATHOM_CHECK(item.yields_token ? !tokens.empty() : tokens.empty(), "tokens where they are due");
  FATHOM_CHECK(static_cast<int64_t>(tokens.size()) <= 1 + drafts, "a token a row of logits");
  // Of the drafts those that came out again were right, and their rows with them.
  const int64_t right = tokens.empty() ? 0 : static_cast<int64_t>(tokens.size()) - 1;
  s.num_computed += item.count - drafts + right;
  if (!s.prefilling) s.cache.truncate(pools_, s.num_computed);
  if (s.prefilling) s.num_prefilled = s.num_computed;
  if (item.all_logits) s.num_scored = s.num_computed;
  s.drop_drafts();
  if (s.prefilling && s.num_computed == snapshot_end(s)) take_snapshot(s);
  if (!item.yields_token) return;
  s.prefilling = false;
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  offer_blocks(s);
  offer_snapshot(s);
  if (reason != FinishReason::kNone) finish(s, reason);
}

// Has rings and states copied as they are now, for the block that ends here.
void Scheduler::take_snapshot(Sequence& s) {
  if (s.num_computed == 0 || s.snapshot != kNoPage) return;
  const auto [taken, copy] = s.cache.snapshot(pools_);
  if (!taken) return;
  next_copies_.push_back(copy);
  s.snapshot = copy.to;
  s.snapshot_block = s.num_computed / pools_.block_tokens - 1;
}

void Scheduler::offer_snapshot(Sequence& s) {
  if (s.snapshot == kNoPage) return;
  const PrefixKey& key = s.keys[static_cast<size_t>(s.snapshot_block)];
  if (cache_->wants_snapshot(key)) {
    cache_->add_snapshot(key, s.snapshot);
    s.snapshot = kNoPage;
  }
  drop_snapshot(s);
}

void Scheduler::drop_snapshot(Sequence& s) {
  if (s.snapshot != kNoPage) pools_.slots.release(s.snapshot);
  s.snapshot = kNoPage;
}

void Scheduler::commit_failed(const StepItem& item, FinishReason reason) {
  Sequence& s = *item.sequence;
  if (s.abort_reason != FinishReason::kNone) return;
  finish(s, reason);
}

// Called when the logits behind these tokens were finite. A NaN in the keys of any token would have
// reached them, so complete blocks are finite as well.
void Scheduler::offer_blocks(Sequence& s) {
  if (cache_ == nullptr) return;
  const int64_t size = pools_.block_tokens;
  const int64_t right = options_.share_decoded_pages ? s.num_computed : s.num_prefilled;
  const int64_t usable = std::min(right, s.num_shareable);
  for (; (s.num_offered_blocks + 1) * size <= usable; ++s.num_offered_blocks) {
    const int64_t i = s.num_offered_blocks;
    const PrefixKey key = cache_->key_of(s.root, s.tokens, i, s.keys);
    const PrefixKey parent = i == 0 ? s.root : s.keys[static_cast<size_t>(i - 1)];
    const auto tokens =
        std::span(s.tokens).subspan(static_cast<size_t>(i * size), static_cast<size_t>(size));
    cache_->publish(key, parent, tokens, s.cache.blocks()[static_cast<size_t>(i)]);
  }
}

void Scheduler::finish(Sequence& s, FinishReason reason) {
  if (erase_from(waiting_, s)) {
    waiting_tokens_ -= s.num_tokens();
  } else {
    erase_from(running_, s);
  }
  drop_snapshot(s);
  s.cache.release_all(pools_);
  s.state = SequenceState::kFinished;
  s.finish = reason;
}

void Scheduler::finish_step() {
  in_step_ = false;
  for (const PageId snapshot : resumed_snapshots_)
    pools_.slots.release(snapshot);
  resumed_snapshots_.clear();
  for (const auto* items : {&plan_.prefill, &plan_.decode}) {
    for (const StepItem& item : *items) {
      Sequence& s = *item.sequence;
      s.in_flight = false;
      if (s.state == SequenceState::kRunning && s.abort_reason != FinishReason::kNone) {
        finish(s, s.abort_reason);
      }
    }
  }
}

bool Scheduler::abort(Sequence& s, FinishReason reason) {
  FATHOM_CHECK(reason != FinishReason::kNone, "an abort has a reason");
  if (s.state == SequenceState::kNew || s.state == SequenceState::kFinished) return false;
  if (s.abort_reason != FinishReason::kNone) return false;
  s.abort_reason = reason;
  if (!s.in_flight) finish(s, reason);
  return true;
}

void Scheduler::find_expired(int64_t now_ns, std::vector<Expired>& out) const {
  const auto passed = [&](int64_t deadline) { return deadline != 0 && now_ns >= deadline; };
  for (Sequence* s : waiting_) {
    if (passed(s->deadline_ns)) {
      out.push_back({s, FinishReason::kRequestTimeout});
    } else if (s->num_preemptions == 0 && passed(s->queue_deadline_ns)) {
      out.push_back({s, FinishReason::kQueueTimeout});
    }
  }
  for (Sequence* s : running_) {
    if (passed(s->deadline_ns)) out.push_back({s, FinishReason::kRequestTimeout});
  }
}

SchedulerStats Scheduler::stats() const {
  return {.num_running = static_cast<int64_t>(running_.size()),
          .num_waiting = static_cast<int64_t>(waiting_.size()),
          .waiting_tokens = waiting_tokens_,
          .num_admissions = num_admissions_,
          .num_preemptions = num_preemptions_};
}

}  // namespace fathom
