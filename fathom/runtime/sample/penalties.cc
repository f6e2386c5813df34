#include "fathom/runtime/sample/penalties.h"

#include <algorithm>

#include "fathom/base/check.h"

namespace fathom {

TokenCounts::TokenCounts(const SamplingParams& params,
                         std::span<const int32_t> prompt,
                         int64_t max_tokens,
                         int64_t vocab_size) {
  if (!params.has_penalties()) return;
  index_of_token_.assign(static_cast<size_t>(vocab_size), -1);
  const bool with_prompt = params.repetition_penalty != 1.0f;
  const int64_t most = (with_prompt ? static_cast<int64_t>(prompt.size()) : 0) + max_tokens;
  const auto distinct = static_cast<size_t>(std::min(most, vocab_size));
  tokens_.reserve(distinct);
  counts_.reserve(distinct);
  if (!with_prompt) return;
  for (int32_t token : prompt)
    count_of(token);
}

void TokenCounts::add(int32_t token) {
  if (!index_of_token_.empty()) ++count_of(token);
}

int32_t& TokenCounts::count_of(int32_t token) {
  FATHOM_CHECK(token >= 0 && static_cast<size_t>(token) < index_of_token_.size(),
               "a token outside the vocabulary");
  int32_t& index = index_of_token_[static_cast<size_t>(token)];
  if (index < 0) {
    index = static_cast<int32_t>(tokens_.size());
    tokens_.push_back(token);
    counts_.push_back(0);
  }
  return counts_[static_cast<size_t>(index)];
}

}  // namespace fathom
