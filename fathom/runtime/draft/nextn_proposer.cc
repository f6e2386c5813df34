#include "fathom/runtime/draft/nextn_proposer.h"

#include <algorithm>

namespace fathom {

// A step has no more tokens than its shape, nor has a pass behind it or a chain.
void NextnPasses::reserve(const StepShape& shape) {
  const auto seqs = static_cast<size_t>(shape.max_num_seqs);
  const auto tokens = static_cast<size_t>(shape.max_tokens());
  for (auto* steps : {&prefill_, &decode_})
    steps->reserve(seqs);
  for (auto* numbers : {&rows_read_, &padded_})
    numbers->reserve(tokens);
  samples_.reserve(tokens);
  paths_.reserve(tokens);
}

void NextnPasses::begin_pass() {
  decode_.clear();
  rows_read_.clear();
  samples_.clear();
  paths_.clear();
}

Result<std::span<const SampleResult>> NextnPasses::run_passes(Executor& executor, int64_t chain) {
  FATHOM_ASSIGN(const StepResults results, executor.run({.decode = decode_,
                                                         .wants = StepWants::kTokens,
                                                         .samples = samples_,
                                                         .pass = Step::Pass::kDraft,
                                                         .draft_input = hidden_,
                                                         .draft_rows = rows_read_,
                                                         .chain = chain,
                                                         .node_paths = paths_}));
  hidden_ = results.hidden;
  return results.samples;
}

// Tokens that each sequence gets behind a step that only decodes; 0: as many as are right. Rows of
// padding end where the step had rows of the sequence with the most tokens: other sequences need
// room there. A ring keeps what it must: it holds as many rows behind the last right one as a
// step may have drafts.
int64_t NextnPasses::padded_tokens(const Executor& executor,
                                   std::span<const ComputedTokens> computed) const {
  if (pad_ == PadPasses::kWhereCaptured && !executor.captures_steps()) return 0;
  int64_t tokens = 0;
  for (const ComputedTokens& c : computed)
    tokens = std::max(tokens, std::min(c.count, most_right_));
  const bool padded = std::ranges::all_of(computed, [&](const ComputedTokens& c) {
    return !c.prefill && c.room >= tokens && std::ssize(c.next) <= tokens;
  });
  return padded ? tokens : 0;
}

void NextnPasses::add_computed(const ComputedTokens& c, int64_t padded) {
  SequenceStep step{.tokens = c.next,
                    .cached = c.begin,
                    .pages = c.sequence->cache.blocks(),
                    .slot = c.sequence->cache.slot(),
                    .logits = c.goes_on ? LogitRows::kLast : LogitRows::kNone,
                    .padding = std::max<int64_t>(padded - std::ssize(c.next), 0)};
  rows_read_.insert(rows_read_.end(), c.hidden_rows.begin(), c.hidden_rows.end());
  if (step.padding > 0) {
    const size_t first = padded_.size();
    padded_.insert(padded_.end(), c.next.begin(), c.next.end());
    padded_.resize(first + static_cast<size_t>(padded), c.next.back());
    rows_read_.resize(rows_read_.size() + static_cast<size_t>(step.padding), c.hidden_rows.back());
    step.tokens = std::span(padded_).subspan(first);
  }
  (c.prefill ? prefill_ : decode_).push_back(step);
}

Status NextnPasses::run_behind(Executor& executor,
                               std::span<const ComputedTokens> computed,
                               const View& hidden,
                               const SamplingParams* params,
                               const OnGuess& on_guess) {
  begin_pass();
  prefill_.clear();
  const int64_t padded = padded_tokens(executor, computed);
  padded_.clear();
  padded_.reserve(computed.size() * static_cast<size_t>(padded));  // steps point into it
  for (const ComputedTokens& c : computed) {
    add_computed(c, padded);
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
  int64_t row = 0;
  for (const ComputedTokens& c : computed) {
    const int64_t tokens = std::ssize(c.next);
    if (c.goes_on) {
      on_guess(c.sequence->id, static_cast<int32_t>(row + tokens - 1), results.samples[sample++]);
    }
    row += std::max(tokens, padded);
  }
  return {};
}

// A step has no more right tokens than tokens.
NextnProposer::NextnProposer(PadPasses pad) : NextnPasses(INT64_MAX, pad) {}

void NextnProposer::reserve(const StepShape& shape) {
  NextnPasses::reserve(shape);
  first_.reserve(shape.max_num_seqs);
  chains_.reserve(static_cast<size_t>(shape.max_num_seqs));
}

Status NextnProposer::follow(Executor& executor,
                             std::span<const ComputedTokens> computed,
                             const View& hidden) {
  first_.clear();
  return run_behind(executor, computed, hidden, nullptr,
                    [&](RequestId id, int32_t row, const SampleResult& guess) {
                      first_.add(id) = {guess.finite ? guess.token : -1, row};
                    });
}

Status NextnProposer::propose(Executor& executor, std::span<const DraftPlace> places) {
  chains_.clear();
  for (const DraftPlace& place : places) {
    const Draft* first = first_.find(place.sequence->id);
    if (first == nullptr || first->token < 0) continue;
    place.sequence->drafts.push_back(first->token);
    if (place.most > 1) chains_.push_back({&place, *first});
  }
  first_.clear();  // their states go with the next pass
  while (!chains_.empty())
    FATHOM_TRY(go_on(executor));
  return {};
}

// As many drafts more for each chain as the longest one wants, if all have room for the rows: row k
// of them stands behind the last known token but one, the drafts before and k rows more, and there
// is room for `most` rows behind the last known token. What a chain has too many is dropped.
Status NextnProposer::go_on(Executor& executor) {
  begin_pass();
  int64_t passes = 0;
  int64_t rows = INT64_MAX;
  for (const Chain& chain : chains_) {
    const Sequence& s = *chain.place->sequence;
    const auto drafts = static_cast<int64_t>(s.drafts.size());
    const int64_t wanted = chain.place->most - drafts;
    passes = std::max(passes, wanted);
    rows = std::min(rows, wanted + 2);
    decode_.push_back({.tokens = std::span(&chain.last.token, 1),
                       .cached = s.num_tokens() - 2 + drafts,
                       .pages = s.cache.blocks(),
                       .slot = s.cache.slot()});
    rows_read_.push_back(chain.last.hidden_row);
  }
  passes = std::min({passes, rows, executor.shape().most_chained()});
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (const Chain& chain : chains_) {
      samples_.push_back(chain.place->row);
      samples_.back().position += std::ssize(chain.place->sequence->drafts) + pass;
    }
  }
  FATHOM_ASSIGN(const std::span<const SampleResult> results, run_passes(executor, passes));
  for (size_t i = 0; i < chains_.size(); ++i)
    extend(chains_[i], i, results);
  std::erase_if(chains_, [](const Chain& chain) {
    return chain.last.token < 0 || std::ssize(chain.place->sequence->drafts) == chain.place->most;
  });
  return {};
}

// With what the passes gave for chain i, up to a row that is not finite.
void NextnProposer::extend(Chain& chain, size_t i, std::span<const SampleResult> results) const {
  std::vector<int32_t>& drafts = chain.place->sequence->drafts;
  for (; i < results.size() && std::ssize(drafts) < chain.place->most; i += chains_.size()) {
    chain.last = {results[i].finite ? results[i].token : -1,
                  static_cast<int32_t>(i % chains_.size())};
    if (!results[i].finite) return;
    drafts.push_back(results[i].token);
  }
}

}  // namespace fathom
