#include "fathom/serve/answer/choice_reader.h"

namespace fathom::serve {

ChoiceReader::ChoiceReader(const Tokenizer* tokenizer,
                           const std::optional<AnswerGrammar>& grammar,
                           const std::vector<ToolDefinition>& tools,
                           bool holds_back) {
  if (!grammar) return;
  stream_ = std::make_unique<AnswerStream>(*tokenizer, *grammar, tools, holds_back);
}

AnswerDelta ChoiceReader::read(const ServiceEvent& event) {
  AnswerDelta out;
  if (!stream_) {
    out.content = event.text;
    return out;
  }
  out = stream_->read({.token = event.token,
                       .text = event.text,
                       .stop_text = event.stop_text,
                       .last = event.finish != FinishReason::kNone});
  called_tools_ |= !out.tool_calls.empty();
  return out;
}

}  // namespace fathom::serve
