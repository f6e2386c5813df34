// What a step computes of each sequence, and with what its rows of logits are sampled.
#include <algorithm>

#include "fathom/runtime/engine.h"
#include "fathom/runtime/engine_request.h"

namespace fathom {
namespace {

void forbid(std::span<uint32_t> mask, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens)
    mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

// Whether a mask has a bit for a token that is not among these.
bool allows_other_than(std::span<const uint32_t> mask, std::span<const int32_t> banned) {
  for (size_t i = 0; i < mask.size(); ++i) {
    uint32_t word = mask[i];
    for (const int32_t token : banned)
      if (static_cast<size_t>(token) / 32 == i) word &= ~(1u << (token % 32));
    if (word != 0) return true;
  }
  return false;
}

}  // namespace

// Of the token `ahead` places behind the next one.
SampleRow EngineCore::sample_row(const ActiveRequest& r, int64_t ahead) const {
  return {.params = &r.params,
          .counts = &r.counts,
          .banned = r.stop.banned(ahead),
          .seed = r.seed,
          .stream = r.stream,
          .position = r.num_tokens() + ahead};
}

// Asks what may come at the next place of a step, `ahead` behind its first one. The state of a
// constraint follows the tokens that were accepted, so it does not matter how often a preempted
// sequence is computed.
void EngineCore::constrain(SampleRow& row, ActiveRequest& r, int64_t ahead) {
  const auto words = static_cast<size_t>(mask_words(settings_.plan.shape.num_ids));
  FATHOM_CHECK((num_masks_ + 1) * words <= masks_.size(), "a mask for each row of a step");
  const auto mask = std::span(masks_).subspan(num_masks_ * words, words);
  r.only_end_left.push_back(false);
  const ConstraintPlace place = r.constraint->next(mask);
  if (place == ConstraintPlace::kFree) return;
  ++num_masks_;
  const bool only_end = !allows_other_than(mask, settings_.end_ids);
  r.only_end_left.back() = only_end;
  // What is prescribed goes on while it may, and ends where nothing else is left.
  if (r.params.ignore_eos && !only_end) forbid(mask, settings_.end_ids);
  row.mask = mask;
  row.most_probable = place == ConstraintPlace::kStructure;
  if (ahead == 0) r.nothing_allowed = !allows_other_than(mask, {});
  // Where nothing but the end is left the answer ends, min_tokens or not.
  if (!allows_other_than(mask, row.banned)) row.banned = {};
}

// What an item computes, and with what each of its rows of logits is sampled.
void EngineCore::add_item(const StepItem& item, std::vector<SequenceStep>& steps) {
  auto& s = static_cast<ActiveRequest&>(*item.sequence);
  if (s.started_ns == 0) s.started_ns = clock_.now_ns();
  const int64_t drafts = item.num_drafts();
  SequenceStep step{.cached = item.begin,
                    .pages = s.cache.blocks(),
                    .slot = s.cache.slot(),
                    .logits = item.yields_token ? LogitRows::kLast : LogitRows::kNone};
  const auto known = std::span(s.tokens).subspan(static_cast<size_t>(item.begin),
                                                 static_cast<size_t>(item.count - drafts));
  step.tokens = known;
  if (item.all_logits) {
    step.logits = LogitRows::kAll;
    add_scored_rows(item);
  }
  if (drafts > 0) {
    const size_t begin = drafted_.size();
    drafted_.insert(drafted_.end(), known.begin(), known.end());
    drafted_.insert(drafted_.end(), s.drafts.begin(), s.drafts.begin() + drafts);
    step.tokens = std::span(drafted_).subspan(begin);
    step.logits = LogitRows::kAll;
    if (!s.draft_parents.empty()) step.parents = add_tree(s, drafts);
  }
  steps.push_back(step);
  if (!item.yields_token) return;
  add_sampled_rows(s, drafts);
}

// The last known token is the root, in row 0 of the tree.
std::span<const int32_t> EngineCore::add_tree(const ActiveRequest& r, int64_t drafts) {
  const size_t begin = parents_.size();
  parents_.push_back(-1);
  for (int64_t i = 0; i < drafts; ++i)
    parents_.push_back(r.draft_parents[static_cast<size_t>(i)] + 1);
  return std::span(parents_).subspan(begin);
}

// A row for the next token and for each behind a draft. A constraint follows the drafts for the
// masks behind them, and is taken back to where it was.
void EngineCore::add_sampled_rows(ActiveRequest& r, int64_t drafts) {
  r.only_end_left.clear();
  depths_.assign(1, 0);
  for (int32_t draft = -1; draft < drafts; ++draft) {
    if (draft >= 0) depths_.push_back(1 + depths_[static_cast<size_t>(r.draft_before(draft) + 1)]);
    const int64_t ahead = depths_.back();
    rows_.push_back(sample_row(r, ahead));
    if (r.constraint == nullptr) continue;
    (void)walk_to(r, draft);  // it did before: keep_useful_drafts()
    constrain(rows_.back(), r, ahead);
  }
  walk_back(r);
}

// A row for each token of a prompt that is scored but the one that gives a token.
void EngineCore::add_scored_rows(const StepItem& item) {
  const auto& r = static_cast<const ActiveRequest&>(*item.sequence);
  const int64_t count = item.count - (item.yields_token ? 1 : 0);
  for (int64_t p = item.begin; p < item.begin + count; ++p) {
    const bool wanted = p < r.num_to_score();
    rows_.push_back({.params = &r.scoring,
                     .position = p + 1,
                     .scored = wanted ? r.tokens[static_cast<size_t>(p + 1)] : -1});
  }
}

// What came of them. False: there were logits that are not finite.
bool EngineCore::take_scores(const StepItem& item, std::span<const SampleResult> results) {
  auto& r = static_cast<ActiveRequest&>(*item.sequence);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].finite) return false;
    if (item.begin + static_cast<int64_t>(i) >= r.num_to_score()) break;
    const SampleResult& result = results[i];
    r.listener->prompt_logprobs.push_back(
        {.token = {result.token, result.logprob},
         .rank = result.rank,
         .top = {result.top_logprobs.begin(), result.top_logprobs.end()}});
  }
  return true;
}

Status EngineCore::start(const StepPlan& plan) {
  prefill_.clear();
  decode_.clear();
  rows_.clear();
  drafted_.clear();
  parents_.clear();
  num_masks_ = 0;
  for (const StepItem& item : plan.prefill)
    add_item(item, prefill_);
  for (const StepItem& item : plan.decode)
    add_item(item, decode_);
  return executor_->start({.prefill = prefill_,
                           .decode = decode_,
                           .wants = rows_.empty() ? StepWants::kNothing : StepWants::kTokens,
                           .samples = rows_,
                           .slot_copies = plan.slot_copies});
}

}  // namespace fathom
