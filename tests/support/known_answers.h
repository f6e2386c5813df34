// Drafts of answers that are known, so that most of them are right.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/support/engine_traces.h"

namespace fathom {

/// Knows the answers, and is wrong now and then. Of a tree each guess comes behind a wrong one, and
/// of a bush also behind wrong ones that follow each other.
class KnownAnswers final : public Proposer {
 public:
  enum class Shape { kChains, kTrees, kBushes };

  KnownAnswers(const std::vector<std::vector<int32_t>>& prompts,
               const std::vector<Trace>& answers,
               Shape shape = Shape::kChains)
      : prompts_(prompts), answers_(answers), shape_(shape) {}

  Status propose(Executor&, std::span<const DraftPlace> places) override {
    for (const DraftPlace& place : places) {
      Sequence& s = *place.sequence;
      const std::vector<int32_t> prompt(s.tokens.begin(), s.tokens.begin() + s.prompt_length);
      const auto which =
          static_cast<size_t>(std::ranges::find(prompts_, prompt) - prompts_.begin());
      const std::vector<int32_t>& answer = answers_[which].tokens;
      const auto at = static_cast<size_t>(s.num_generated());
      const auto levels = static_cast<size_t>(place.most / (1 + static_cast<int64_t>(shape_)));
      int32_t last = -1;
      int32_t wrong = -1;
      for (size_t i = at; i < std::min(at + levels, answer.size()); ++i) {
        if (shape_ == Shape::kBushes) {
          s.drafts.push_back(answer[i] ^ 3);
          s.draft_parents.push_back(wrong);
          wrong = static_cast<int32_t>(s.drafts.size()) - 1;
        }
        if (shape_ != Shape::kChains) {
          s.drafts.push_back(answer[i] ^ 2);
          s.draft_parents.insert(s.draft_parents.end(), 2, last);
        }
        last = static_cast<int32_t>(s.drafts.size());
        s.drafts.push_back(i % 7 == 6 ? answer[i] ^ 1 : answer[i]);
      }
    }
    return {};
  }

 private:
  const std::vector<std::vector<int32_t>>& prompts_;
  const std::vector<Trace>& answers_;
  const Shape shape_;
};

}  // namespace fathom
