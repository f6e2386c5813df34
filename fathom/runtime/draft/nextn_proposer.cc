#include "fathom/runtime/draft/nextn_proposer.h"

#include <algorithm>

namespace fathom {

void NextnPasses::begin_pass() {
  decode_.clear();
  rows_read_.clear();
  samples_.clear();
}

Result<std::span<const SampleResult>> NextnPasses::run_pass(Executor& executor) {
  FATHOM_ASSIGN(const StepResults results, executor.run({.decode = decode_,
                                                         .wants = StepWants::kTokens,
                                                         .samples = samples_,
                                                         .pass = Step::Pass::kDraft,
                                                         .draft_input = hidden_,
                                                         .draft_rows = rows_read_}));
  hidden_ = results.hidden;
  return results.samples;
}

Status NextnPasses::run_behind(Executor& executor,
                               std::span<const ComputedTokens> computed,
                               const View& hidden,
                               const SamplingParams* params,
                               const OnGuess& on_guess) {
  begin_pass();
  prefill_.clear();
  for (const ComputedTokens& c : computed) {
    (c.prefill ? prefill_ : decode_)
        .push_back({.tokens = c.next,
                    .cached = c.begin,
                    .pages = c.sequence->cache.blocks(),
                    .slot = c.sequence->cache.slot(),
                    .logits = c.goes_on ? LogitRows::kLast : LogitRows::kNone});
    rows_read_.insert(rows_read_.end(), c.hidden_rows.begin(), c.hidden_rows.end());
    if (!c.goes_on) continue;
    samples_.push_back(c.row);
    if (params != nullptr) samples_.back().params = params;
  }
  FATHOM_ASSIGN(const StepResults results,
                executor.run({.prefill = prefill_,
                              .decode = decode_,
                              .wants = samples_.empty() ? StepWants::kNothing : StepWants::kTokens,
                              .samples = samples_,
                              .pass = Step::Pass::kDraft,
                              .draft_input = hidden,
                              .draft_rows = rows_read_}));
  hidden_ = results.hidden;
  size_t sample = 0;
  int32_t row = 0;
  for (const ComputedTokens& c : computed) {
    row += static_cast<int32_t>(c.next.size());
    if (c.goes_on) on_guess(c.sequence->id, row - 1, results.samples[sample++]);
  }
  return {};
}

Status NextnProposer::follow(Executor& executor,
                             std::span<const ComputedTokens> computed,
                             const View& hidden) {
  first_.clear();
  return run_behind(executor, computed, hidden, nullptr,
                    [&](RequestId id, int32_t row, const SampleResult& guess) {
                      first_[id] = {guess.finite ? guess.token : -1, row};
                    });
}

Status NextnProposer::propose(Executor& executor, std::span<const DraftPlace> places) {
  chains_.clear();
  for (const DraftPlace& place : places) {
    const auto first = first_.find(place.sequence->id);
    if (first == first_.end() || first->second.token < 0) continue;
    place.sequence->drafts.push_back(first->second.token);
    if (place.most > 1) chains_.push_back({&place, first->second});
  }
  first_.clear();  // their states go with the next pass
  while (!chains_.empty())
    FATHOM_TRY(go_on(executor));
  return {};
}

// One draft more for each chain. Its row stands behind the last known token but one, and behind the
// drafts before this one.
Status NextnProposer::go_on(Executor& executor) {
  begin_pass();
  for (const Chain& chain : chains_) {
    const Sequence& s = *chain.place->sequence;
    const auto drafts = static_cast<int64_t>(s.drafts.size());
    decode_.push_back({.tokens = std::span(&chain.last.token, 1),
                       .cached = s.num_tokens() - 2 + drafts,
                       .pages = s.cache.blocks(),
                       .slot = s.cache.slot()});
    rows_read_.push_back(chain.last.hidden_row);
    samples_.push_back(chain.place->row);
    samples_.back().position += drafts;
  }
  FATHOM_ASSIGN(const std::span<const SampleResult> results, run_pass(executor));
  for (size_t i = 0; i < chains_.size(); ++i) {
    const SampleResult& result = results[i];
    chains_[i].last = {result.finite ? result.token : -1, static_cast<int32_t>(i)};
    if (result.finite) chains_[i].place->sequence->drafts.push_back(result.token);
  }
  std::erase_if(chains_, [](const Chain& chain) {
    return chain.last.token < 0 ||
           static_cast<int64_t>(chain.place->sequence->drafts.size()) == chain.place->most;
  });
  return {};
}

}  // namespace fathom
