#include "fathom/runtime/draft/nextn_proposer.h"

#include <algorithm>

namespace fathom {

Status NextnProposer::follow(Executor& executor,
                             std::span<const ComputedTokens> computed,
                             const View& hidden) {
  prefill_.clear();
  decode_.clear();
  rows_read_.clear();
  samples_.clear();
  first_.clear();
  int32_t row = 0;
  for (const ComputedTokens& c : computed) {
    const auto count = static_cast<int32_t>(c.next.size());
    (c.prefill ? prefill_ : decode_)
        .push_back({.tokens = c.next,
                    .cached = c.begin,
                    .pages = c.sequence->cache.blocks(),
                    .slot = c.sequence->cache.slot(),
                    .logits = c.goes_on ? LogitRows::kLast : LogitRows::kNone});
    for (int32_t i = 0; i < count; ++i)
      rows_read_.push_back(static_cast<int32_t>(c.hidden_row) + i);
    row += count;
    if (c.goes_on) {
      samples_.push_back(c.row);
      first_[c.sequence->id].hidden_row = row - 1;
    }
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
  for (const ComputedTokens& c : computed) {
    if (!c.goes_on) continue;
    const SampleResult& result = results.samples[sample++];
    first_[c.sequence->id].token = result.finite ? result.token : -1;
  }
  return {};
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
  decode_.clear();
  rows_read_.clear();
  samples_.clear();
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
  FATHOM_ASSIGN(const StepResults results, executor.run({.decode = decode_,
                                                         .wants = StepWants::kTokens,
                                                         .samples = samples_,
                                                         .pass = Step::Pass::kDraft,
                                                         .draft_input = hidden_,
                                                         .draft_rows = rows_read_}));
  hidden_ = results.hidden;
  for (size_t i = 0; i < chains_.size(); ++i) {
    const SampleResult& result = results.samples[i];
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
