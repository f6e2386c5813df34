// Drafts: who takes some, and which of them came out.
#include <algorithm>

#include "fathom/runtime/engine.h"
#include "fathom/runtime/engine_request.h"

namespace fathom {

Status EngineCore::propose() {
  if (settings_.proposer == nullptr || most_drafts() == 0) return {};
  const int64_t rows = settings_.proposer->reach(most_drafts()).rows;
  const std::vector<Sequence*>& running = scheduler_.running();
  const int64_t batch = std::ranges::count_if(running, [](Sequence* s) { return !s->prefilling; });
  const bool plain = settings_.adaptive_drafts && balance_.wants_plain_step();
  draft_places_.clear();
  for (Sequence* s : running) {
    auto& r = static_cast<ActiveRequest&>(*s);
    r.drop_drafts();
    if (r.prefilling || !r.takes_drafts()) continue;
    r.gains = gains_by_drafts(r, batch);
    if (plain || !r.gains) continue;
    const int64_t room = scheduler_.make_draft_room(r, rows);
    if (room > 0) draft_places_.push_back({&r, room, guess_row(r, 0)});
  }
  if (draft_places_.empty()) {
    if (batch > 0) balance_.count_step(true);
    return {};
  }
  const int64_t begin = clock_.now_ns();
  FATHOM_TRY(settings_.proposer->propose(*executor_, draft_places_));
  int64_t guessed = 0;
  for (const DraftPlace& place : draft_places_) {
    keep_useful_drafts(static_cast<ActiveRequest&>(*place.sequence));
    guessed += place.sequence->drafts.empty() ? 0 : 1;
  }
  if (guessed > 0) balance_.add_guessing(guessed, follow_ns_ + clock_.now_ns() - begin);
  balance_.count_step(guessed == 0);
  return {};
}

// A request that loses pauses, each time twice as long: its text may become another. That the batch
// is too large for those that gain alone says nothing of a request; now and then the mean of all is
// measured again, for requests change.
bool EngineCore::gains_by_drafts(ActiveRequest& r, int64_t batch) {
  constexpr int64_t kFirstPause = 32;
  constexpr int64_t kLongestPause = 4096;
  constexpr int64_t kHeldBack = 256;  // steps
  if (!settings_.adaptive_drafts) return true;
  if (r.num_generated() < r.paused_until) return false;
  const auto gain = [&](const DraftGain& g, int64_t beside) {
    return balance_.gains(g.accepted(), g.drafted(), beside);
  };
  if (mean_gain_.is_known() && gain(mean_gain_, 1) && !gain(mean_gain_, batch)) {
    if (++num_held_back_ < kHeldBack * batch) return false;
    num_held_back_ = 0;
    mean_gain_.start_again();
  }
  if (!r.gain.is_known() || gain(r.gain, batch)) return true;
  r.pause = r.pause == 0 ? kFirstPause : std::min(2 * r.pause, kLongestPause);
  // A proposer that stops to follow knows too little to begin again.
  r.paused_until = settings_.proposer->follows() ? INT64_MAX : r.num_generated() + r.pause;
  r.gain.start_again();
  ++draft_pauses_;
  return false;
}

SampleRow EngineCore::guess_row(const ActiveRequest& r, int64_t ahead) const {
  SampleRow row = sample_row(r, ahead);
  row.params = &r.guessing;
  return row;
}

bool EngineCore::is_right(int32_t guess, int32_t drawn) {
  if (!settings_.simulated_acceptance) return guess == drawn;
  return simulation_.next_uniform() < *settings_.simulated_acceptance;
}

// Follows what was drawn through the drafts of each sequence.
Status EngineCore::find_paths() {
  if (settings_.proposer == nullptr) return {};
  moves_.clear();
  size_t row = results_.size();
  for (const StepItem& item : plan_->decode)
    row -= static_cast<size_t>(1 + item.num_drafts());
  for (const StepItem& item : plan_->decode) {
    auto& r = static_cast<ActiveRequest&>(*item.sequence);
    const auto drafts = static_cast<int32_t>(item.num_drafts());
    const auto results = results_.subspan(row, static_cast<size_t>(1 + drafts));
    row += results.size();
    if (r.abort_reason != FinishReason::kNone || !results[0].finite) continue;
    const auto result_behind = [&](int32_t draft) -> const SampleResult& {
      return results[static_cast<size_t>(draft + 1)];
    };
    for (int32_t last = -1, draft = 0; draft < drafts; ++draft) {
      const bool right = r.draft_before(draft) == last && result_behind(draft).finite &&
                         is_right(r.drafts[static_cast<size_t>(draft)], result_behind(last).token);
      if (!right) continue;
      r.path.push_back(draft);
      last = draft;
    }
    if (!r.draft_parents.empty() && !r.path.empty()) add_moves(r, item);
  }
  return moves_.empty() ? Status{} : executor_->move_rows(moves_);
}

// Rows of a tree that are right go to where those of a chain would lie.
void EngineCore::add_moves(const ActiveRequest& r, const StepItem& item) {
  parents_.clear();  // those of the step have served
  tree_.set(item.begin, add_tree(r, item.num_drafts()));
  tree_path_.clear();
  for (const int32_t draft : r.path)
    tree_path_.push_back(draft + 1);
  moves_.add(tree_, tree_path_, r.cache.blocks(), r.cache.slot());
}

// Shows the proposer what was computed, before pages are shared and given back.
Status EngineCore::follow(const View& hidden) {
  if (settings_.proposer == nullptr || !settings_.proposer->follows()) return {};
  const int64_t begin = clock_.now_ns();
  keep_results();
  computed_.clear();
  next_tokens_.clear();
  hidden_rows_.clear();
  num_masks_ = 0;  // those of the step have served
  size_t row = 0;
  int64_t hidden_row = 0;
  for (const auto* items : {&plan_->prefill, &plan_->decode}) {
    for (const StepItem& item : *items) {
      const int64_t sampled = item.yields_token ? 1 + item.num_drafts() : 0;
      if (item.all_logits) row += static_cast<size_t>(item.count - sampled);
      add_computed(item, results_.subspan(row, static_cast<size_t>(sampled)), hidden_row);
      row += static_cast<size_t>(sampled);
      hidden_row += item.count;
    }
  }
  if (computed_.empty()) return {};
  FATHOM_TRY(settings_.proposer->follow(*executor_, computed_, hidden));
  follow_ns_ = plan_->prefill.empty() ? clock_.now_ns() - begin : 0;
  return {};
}

// The passes of a proposer are steps of the same executor, whose results are gone with the next.
void EngineCore::keep_results() {
  kept_results_.assign(results_.begin(), results_.end());
  size_t count = 0;
  for (const SampleResult& result : kept_results_)
    count += result.top_logprobs.size();
  kept_logprobs_.clear();
  kept_logprobs_.reserve(count);
  for (SampleResult& result : kept_results_) {
    const size_t first = kept_logprobs_.size();
    kept_logprobs_.insert(kept_logprobs_.end(), result.top_logprobs.begin(),
                          result.top_logprobs.end());
    result.top_logprobs = std::span(kept_logprobs_).subspan(first);
  }
  results_ = kept_results_;
}

void EngineCore::add_computed(const StepItem& item,
                              std::span<const SampleResult> results,
                              int64_t hidden_row) {
  auto& r = static_cast<ActiveRequest&>(*item.sequence);
  if (r.abort_reason != FinishReason::kNone || (item.yields_token && !results[0].finite)) return;
  if (r.paused_until == INT64_MAX) {  // it has stopped drafting for good
    r.num_shareable = std::min(r.num_shareable, item.begin);
    return;
  }
  const int64_t known = item.count - item.num_drafts();
  const size_t first = next_tokens_.size();
  const auto begin = r.tokens.begin() + item.begin + 1;
  next_tokens_.insert(next_tokens_.end(), begin, begin + known - (item.yields_token ? 1 : 0));
  for (int64_t i = 0; i < known; ++i)
    hidden_rows_.push_back(static_cast<int32_t>(hidden_row + i));
  if (item.yields_token) next_tokens_.push_back(results[0].token);
  for (const int32_t draft : r.path) {
    next_tokens_.push_back(results[static_cast<size_t>(draft) + 1].token);
    hidden_rows_.push_back(static_cast<int32_t>(hidden_row + known) + draft);
  }
  const auto ahead = static_cast<int64_t>(r.path.size()) + 1;
  SampleRow row = guess_row(r, ahead);
  const bool goes_on =
      item.yields_token && r.takes_drafts() && r.gains &&
      r.num_generated() + ahead + 1 < r.max_tokens &&
      constrain_guess(row, r, std::span(next_tokens_).last(static_cast<size_t>(ahead)));
  computed_.push_back({.sequence = &r,
                       .begin = item.begin,
                       .hidden_rows = std::span(hidden_rows_).subspan(first),
                       .prefill = r.prefilling,
                       .count = item.count,
                       .room = room_from(r, item.begin),
                       .next = std::span(next_tokens_).subspan(first),
                       .goes_on = goes_on,
                       .row = row});
}

// Rows from `begin` on in blocks of a sequence: those behind what was computed are nobody else's.
int64_t EngineCore::room_from(const ActiveRequest& r, int64_t begin) const {
  const int64_t rows = std::ssize(r.cache.blocks()) * executor_->block_tokens();
  return std::min(rows, settings_.plan.max_model_len) - begin;
}

// What a first guess is drawn with under a constraint, which has not been told yet of the tokens
// that came out before it. False: nothing is worth guessing there.
bool EngineCore::constrain_guess(SampleRow& row,
                                 ActiveRequest& r,
                                 std::span<const int32_t> tokens) {
  if (r.constraint == nullptr) return true;
  int64_t taken = 0;
  for (const int32_t token : tokens) {
    const bool ends = std::ranges::count(settings_.end_ids, token) > 0;
    if (ends || !r.constraint->accept(token)) break;
    ++taken;
  }
  const bool goes_on = taken == static_cast<int64_t>(tokens.size());
  if (goes_on) constrain(row, r, taken);
  if (taken > 0) r.constraint->rollback(taken);
  return goes_on;
}

int64_t EngineCore::draft_batch_limit() const {
  if (!mean_gain_.is_known()) return -1;
  return balance_.largest_batch(mean_gain_.accepted(), mean_gain_.drafted()).value_or(-1);
}

void EngineCore::count_drafts(ActiveRequest& r, int64_t drafts, int64_t accepted) {
  if (drafts == 0) return;
  ++num_drafts_;
  drafted_tokens_ += drafts;
  accepted_tokens_ += accepted;
  for (int64_t i = 0; i < accepted; ++i)
    ++accepted_at_[static_cast<size_t>(i)];
  r.num_drafted += drafts;
  r.num_accepted += accepted;
  r.gain.add(drafts, accepted);
  mean_gain_.add(drafts, accepted);
}

// Leads the constraint of a request behind a draft, from where it followed others to; -1: behind
// the last known token. False, somewhere on the way, if it refuses one.
bool EngineCore::walk_to(ActiveRequest& r, int32_t draft) {
  const auto is_on_way = [&](int32_t walked) {
    int32_t at = draft;
    while (at > walked)
      at = r.draft_before(at);
    return at == walked;
  };
  while (!walked_.empty() && !is_on_way(walked_.back())) {
    r.constraint->rollback(1);
    walked_.pop_back();
  }
  if (draft < 0 || (!walked_.empty() && walked_.back() == draft)) return true;
  if (!walk_to(r, r.draft_before(draft))) return false;
  if (!r.constraint->accept(r.drafts[static_cast<size_t>(draft)])) return false;
  walked_.push_back(draft);
  return true;
}

void EngineCore::walk_back(ActiveRequest& r) {
  if (!walked_.empty()) r.constraint->rollback(static_cast<int64_t>(walked_.size()));
  walked_.clear();
}

// Without those that no sampler draws, that its constraint refuses, or behind which nothing comes,
// and without what follows them.
void EngineCore::keep_useful_drafts(ActiveRequest& r) {
  const auto useless = [&](int32_t id) {
    const bool ends = r.constraint != nullptr && std::ranges::count(settings_.end_ids, id) > 0;
    return id < 0 || id >= settings_.plan.shape.num_ids || ends || r.stop.is_end(id);
  };
  // The place of each draft among those that stay; -1: it goes.
  kept_.clear();
  int32_t count = 0;
  for (int32_t draft = 0; draft < static_cast<int32_t>(r.drafts.size()); ++draft) {
    const int32_t before = r.draft_before(draft);
    const bool stays = (before < 0 || kept_[static_cast<size_t>(before)] >= 0) &&
                       !useless(r.drafts[static_cast<size_t>(draft)]) &&
                       (r.constraint == nullptr || walk_to(r, draft));
    kept_.push_back(stays ? count++ : -1);
  }
  walk_back(r);
  for (size_t draft = 0; draft < kept_.size(); ++draft) {
    if (kept_[draft] < 0) continue;
    const auto to = static_cast<size_t>(kept_[draft]);
    r.drafts[to] = r.drafts[draft];
    if (r.draft_parents.empty()) continue;
    const int32_t before = r.draft_parents[draft];
    r.draft_parents[to] = before < 0 ? -1 : kept_[static_cast<size_t>(before)];
  }
  r.drafts.resize(static_cast<size_t>(count));
  if (!r.draft_parents.empty()) r.draft_parents.resize(static_cast<size_t>(count));
}

// The tokens that an item's rows gave, up to the first that was not drafted, that ends the request
// or that has no finite logits.
int64_t EngineCore::accept(ActiveRequest& r, std::span<const SampleResult> results) {
  accepted_ids_.clear();
  if (!results[0].finite) return 0;
  for (size_t i = 0; i <= r.path.size(); ++i) {
    const size_t row = i == 0 ? 0 : static_cast<size_t>(r.path[i - 1]) + 1;
    const SampleResult& result = results[row];
    Accepted& a = accepted_[i];
    a.token = result.token;
    a.logprob = result.logprob;
    a.top_logprobs = result.top_logprobs;
    // Banned until min_tokens or to be ignored, and drawn all the same: nothing else was allowed
    // (constrain).
    const bool only_end = row < r.only_end_left.size() && r.only_end_left[row];
    const bool ends = only_end || std::ranges::count(r.stop.banned(), result.token) > 0;
    a.outcome =
        ends ? StopOutcome{FinishReason::kStop, r.stop.release(), {}} : r.stop.push(result.token);
    r.counts.add(result.token);
    accepted_ids_.push_back(result.token);
    if (r.constraint != nullptr && !r.constraint->accept(result.token)) refused(r, a);
    if (a.outcome.finish != FinishReason::kNone || i == r.path.size()) break;
    a.text.assign(a.outcome.text);  // the next push() takes the memory of the view
    a.outcome.text = a.text;
  }
  return static_cast<int64_t>(accepted_ids_.size());
}

}  // namespace fathom
