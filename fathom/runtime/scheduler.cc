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

Scheduler::Scheduler(const SchedulerOptions& options,
                     PagePool& pool,
                     PrefixCache* cache,
                     int block_size)
    : options_(options),
      pool_(pool),
      cache_(cache),
      block_size_(block_size),
      reserve_pages_(static_cast<int64_t>(
          std::ceil(options.page_reserve * static_cast<double>(pool.num_pages())))) {
  FATHOM_CHECK(options.max_num_seqs > 0 && options.max_model_len > 0, "limits must be positive");
  FATHOM_CHECK(options.max_num_batched_tokens >= options.max_num_seqs,
               "a step must have room for one token of each running sequence");
  const auto seqs = static_cast<size_t>(options.max_num_seqs);
  running_.reserve(seqs);
  plan_.prefill.reserve(seqs);
  plan_.decode.reserve(seqs);
}

int64_t Scheduler::pages_needed(int64_t prompt_length, int64_t max_tokens) const {
  return BlockTable::pages_for(prompt_length + max_tokens, block_size_);
}

Status Scheduler::submit(Sequence& s) {
  FATHOM_CHECK(s.state == SequenceState::kNew, "a sequence is submitted once");
  const int64_t total = s.prompt_length + s.max_tokens;
  if (s.prompt_length < 1)
    return invalid_argument("the prompt is empty, expected at least one token");
  if (total > options_.max_model_len) {
    return invalid_argument(str_cat("context_length_exceeded: prompt of ", s.prompt_length,
                                    " tokens and max_tokens ", s.max_tokens, " make ", total,
                                    ", expected at most ", options_.max_model_len,
                                    " (--max-model-len)"));
  }
  if (const int64_t pages = pages_needed(s.prompt_length, s.max_tokens);
      pages > pool_.num_pages()) {
    return invalid_argument(str_cat("too_large_for_pool: prompt of ", s.prompt_length,
                                    " tokens and max_tokens ", s.max_tokens, " need ", pages,
                                    " pages of ", block_size_, " tokens, the whole KV cache has ",
                                    pool_.num_pages()));
  }
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
  s.table.reserve_tokens(total);
  if (cache_ != nullptr) {
    s.root = cache_->root(s.cache_salt);
    s.keys.reserve(static_cast<size_t>(BlockTable::pages_for(total, block_size_)));
  }
  enqueue(s);
  return {};
}

void Scheduler::enqueue(Sequence& s) {
  s.state = SequenceState::kWaiting;
  waiting_tokens_ += s.num_tokens();
  insert_by_order(waiting_, s);
}

const StepPlan& Scheduler::plan() {
  FATHOM_CHECK(!in_step_, "a step is planned when the one before is finished");
  plan_.prefill.clear();
  plan_.decode.clear();
  preempted_ = false;
  const auto decoding =
      std::ranges::count_if(running_, [](const Sequence* s) { return !s->prefilling; });
  prefill_budget_ = options_.max_num_batched_tokens - static_cast<int64_t>(decoding);
  plan_running();
  if (!preempted_) admit();

  plan_.num_tokens = static_cast<int64_t>(plan_.decode.size());
  for (const StepItem& item : plan_.prefill)
    plan_.num_tokens += item.count;
  for (const auto* items : {&plan_.prefill, &plan_.decode}) {
    for (const StepItem& item : *items)
      item.sequence->in_flight = true;
  }
  in_step_ = !plan_.empty();
  FATHOM_CHECK(in_step_ || idle(), "sequences are waiting, but the step is empty");
  return plan_;
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

void Scheduler::plan_prefill(Sequence& s) {
  const int64_t left = s.num_tokens() - s.num_computed;
  const int64_t chunk = options_.max_prefill_chunk > 0 ? options_.max_prefill_chunk : left;
  const int64_t count = std::min({left, chunk, prefill_budget_});
  if (count <= 0) return;
  prefill_budget_ -= count;
  plan_.prefill.push_back({&s, s.num_computed, count, count == left});
}

void Scheduler::plan_decode(Sequence& s) {
  plan_.decode.push_back({&s, s.num_computed, 1, true});
}

// Sees to it that running_[index] has a page for its next token. False if it was itself preempted.
// `next` is where planning goes on; it moves when elements before it leave.
bool Scheduler::make_room(size_t index, size_t& next) {
  Sequence& s = *running_[index];
  while (!s.table.grow(pool_, s.num_computed + 1)) {
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
  running_.erase(running_.begin() + static_cast<int64_t>(index));
  s.table.release_all(pool_);
  s.num_computed = 0;
  s.num_prefilled = 0;
  s.num_offered_pages = 0;
  s.prefilling = true;
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
  while (!waiting_.empty() && prefill_budget_ > 0 &&
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

// Takes the pages of the sequence, those of a known prefix included. False, with nothing changed,
// if too few are available.
bool Scheduler::try_admit(Sequence& s) {
  int64_t cached = 0;
  if (cache_ != nullptr) {
    // The last token is always computed: its logits are wanted.
    cached = cache_->match(s.root, s.tokens, s.num_tokens() - 1, s.table, s.keys);
  }
  const int64_t wanted = BlockTable::pages_for(s.num_tokens() + 1, block_size_);
  const int64_t missing = wanted - s.table.num_pages();
  const int64_t reserve = running_.empty() ? 0 : reserve_pages_;
  if (missing > pool_.num_available() - reserve) {
    s.table.release_all(pool_);
    return false;
  }
  const bool grown = s.table.grow(pool_, s.num_tokens() + 1);
  FATHOM_CHECK(grown, "the pages were counted before");
  s.num_computed = cached;
  s.num_prefilled = cached;
  s.num_offered_pages = cached / block_size_;
  s.prefilling = true;
  if (s.num_preemptions == 0) s.cached_tokens = cached;
  if (cache_ != nullptr) cache_->count(s.num_tokens(), cached);
  return true;
}

void Scheduler::commit(const StepItem& item, int32_t token, FinishReason reason) {
  Sequence& s = *item.sequence;
  if (s.abort_reason != FinishReason::kNone) return;  // finish_step() releases it
  s.num_computed += item.count;
  if (s.prefilling) s.num_prefilled = s.num_computed;
  if (!item.yields_token) return;
  s.prefilling = false;
  offer_pages(s);
  s.tokens.push_back(token);
  if (reason != FinishReason::kNone) finish(s, reason);
}

void Scheduler::commit_failed(const StepItem& item) {
  Sequence& s = *item.sequence;
  if (s.abort_reason != FinishReason::kNone) return;
  finish(s, FinishReason::kNumericalError);
}

// Called when the logits behind these tokens were finite. A NaN in the keys of any token would have
// reached them, so complete pages are finite as well.
void Scheduler::offer_pages(Sequence& s) {
  if (cache_ == nullptr) return;
  const int64_t usable = options_.share_decoded_pages ? s.num_computed : s.num_prefilled;
  for (; (s.num_offered_pages + 1) * block_size_ <= usable; ++s.num_offered_pages) {
    const int64_t i = s.num_offered_pages;
    const PrefixKey key = cache_->key_of(s.root, s.tokens, i, s.keys);
    const PrefixKey parent = i == 0 ? s.root : s.keys[static_cast<size_t>(i - 1)];
    const auto tokens = std::span(s.tokens).subspan(static_cast<size_t>(i * block_size_),
                                                    static_cast<size_t>(block_size_));
    cache_->publish(key, parent, tokens, s.table.pages()[static_cast<size_t>(i)]);
  }
}

void Scheduler::finish(Sequence& s, FinishReason reason) {
  if (erase_from(waiting_, s)) {
    waiting_tokens_ -= s.num_tokens();
  } else {
    erase_from(running_, s);
  }
  s.table.release_all(pool_);
  s.state = SequenceState::kFinished;
  s.finish = reason;
}

void Scheduler::finish_step() {
  in_step_ = false;
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
