// One answer in its grammar (token_constraint.h): what is free, and the library's matcher behind
// it.
//
//   reasoning --free_until--> content --a section of calls opens--> grammar --end token--> ended
//
// Without free_until an answer begins with content, and where content is not free with the grammar.
// Reasoning holds anything but an end of the answer where the grammar must follow.
#pragma once

#if FATHOM_WITH_GRAMMAR

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include "fathom/grammar/call_places.h"
#include "fathom/grammar/vocabulary_masks.h"
#include "fathom/runtime/sample/token_constraint.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

/// A compiled grammar and how answers run through it. Immutable; shared by the answers.
struct GrammarPlan {
  xgrammar::CompiledGrammar library;
  std::shared_ptr<const VocabularyMasks> vocabulary;  ///< shared by all grammars of a compiler
  std::optional<int32_t> free_until;
  AnswerGrammar::ToolCalls calls = AnswerGrammar::ToolCalls::kNone;  ///< where there may be some
  bool has_free_content = false;  ///< content is free until calls begin
  bool calls_or_content = false;  ///< the grammar gives calls, or content in place of them
};

class GrammarState final : public TokenConstraint {
 public:
  explicit GrammarState(std::shared_ptr<const GrammarPlan> plan);

  ConstraintPlace next(std::span<uint32_t> mask) override;
  bool accept(int32_t token) override;
  void rollback(int64_t count) override;

 private:
  enum class Phase : uint8_t { kReasoning, kContent, kGrammar, kEnded, kBroken };

  // The state between two tokens, but for the matcher's.
  struct Step {
    Phase phase;
    uint8_t spelled = 0;        // kContent: bytes of a marker spelled as text
    bool behind_angle = false;  // kContent: the last byte is "<"
    bool was_matched = false;   // the token before took the matcher a step on
    CallPlace place;
  };

  // Content that is free may be none at all.
  bool may_end_in_reasoning() const { return plan_->has_free_content; }

  AnswerMarker trigger() const;
  void fill_mask(std::span<uint32_t> mask);
  bool match(Step& step, int32_t token);
  void take_content(Step& step, int32_t token);
  void open_section(Step& step, std::string_view rest);

  std::shared_ptr<const GrammarPlan> plan_;
  CallPlaces places_;
  xgrammar::GrammarMatcher matcher_;
  std::vector<Step> steps_;  // the last is now
};

}  // namespace fathom

#endif
