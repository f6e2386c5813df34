#include "fathom/serve/replay/call_tokens.h"

#include <string_view>

#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom::serve {
namespace {

constexpr size_t kMostTokens = 32'768;  // of one answer

std::string_view marker_of(const AnswerGrammar& grammar) {
  switch (grammar.tool_calls) {
    case AnswerGrammar::ToolCalls::kNone:
      return "";
    case AnswerGrammar::ToolCalls::kFencedJson:
    case AnswerGrammar::ToolCalls::kBareJson:
      return control::kToolCallsBegin;
    case AnswerGrammar::ToolCalls::kDsml:
      return control::kDsml;
  }
  return "";
}

}  // namespace

CallTokens::CallTokens(const Tokenizer& tokenizer, const AnswerGrammar& grammar)
    : tokenizer_(tokenizer), marker_(tokenizer.token_to_id(marker_of(grammar))) {
  if (marker_ && !tokenizer.is_added(*marker_)) marker_.reset();
}

void CallTokens::push(int32_t id) {
  if (!marker_ || (ids_.empty() && id != *marker_)) return;
  // More than is worth keeping: what follows is dropped, and reading it again will say so.
  if (ids_.size() < kMostTokens && id != tokenizer_.eos_id()) ids_.push_back(id);
}

}  // namespace fathom::serve
