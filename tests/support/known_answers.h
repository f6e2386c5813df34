// Drafts of answers that are known, so that most of them are right.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/support/engine_traces.h"

namespace fathom {

/// Knows the answers, and is wrong now and then.
class KnownAnswers final : public Proposer {
 public:
  KnownAnswers(const std::vector<std::vector<int32_t>>& prompts, const std::vector<Trace>& answers)
      : prompts_(prompts), answers_(answers) {}

  Status propose(Executor&, std::span<const DraftPlace> places) override {
    for (const DraftPlace& place : places) {
      Sequence& s = *place.sequence;
      const std::vector<int32_t> prompt(s.tokens.begin(), s.tokens.begin() + s.prompt_length);
      const auto which =
          static_cast<size_t>(std::ranges::find(prompts_, prompt) - prompts_.begin());
      const std::vector<int32_t>& answer = answers_[which].tokens;
      const auto at = static_cast<size_t>(s.num_generated());
      for (size_t i = at; i < std::min(at + static_cast<size_t>(place.most), answer.size()); ++i)
        s.drafts.push_back(i % 7 == 6 ? answer[i] ^ 1 : answer[i]);
    }
    return {};
  }

 private:
  const std::vector<std::vector<int32_t>>& prompts_;
  const std::vector<Trace>& answers_;
};

}  // namespace fathom
