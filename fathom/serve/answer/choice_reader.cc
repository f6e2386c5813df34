#include "fathom/serve/answer/choice_reader.h"

#include <utility>

namespace fathom::serve {

ChoiceReader::ChoiceReader(const Tokenizer* tokenizer,
                           const std::optional<AnswerGrammar>& grammar,
                           const std::vector<ToolDefinition>& tools,
                           bool holds_back)
    : holds_back_(holds_back) {
  if (!grammar) return;
  decoder_ = std::make_unique<AnswerDecoder>(*tokenizer, *grammar, tools);
  if (holds_back) text_.emplace(*tokenizer, SpecialTokens::kSkip);
}

void ChoiceReader::add(AnswerDelta news, AnswerDelta& out) {
  out.reasoning += news.reasoning;
  out.content += news.content;
  called_tools_ |= !news.tool_calls.empty();
  for (ToolCallDelta& call : news.tool_calls)
    out.tool_calls.push_back(std::move(call));
}

void ChoiceReader::parse(int32_t token, AnswerDelta& out) {
  if (decoder_->in_reasoning()) ++reasoning_tokens_;
  add(decoder_->push(token), out);
}

AnswerDelta ChoiceReader::read(const ServiceEvent& event) {
  AnswerDelta out;
  if (!decoder_) {
    out.content = event.text;
    return out;
  }
  if (holds_back_) {
    read_held(event, out);
  } else if (event.token >= 0) {
    parse(event.token, out);
  }
  if (event.finish != FinishReason::kNone) add(decoder_->finish(), out);
  return out;
}

void ChoiceReader::read_held(const ServiceEvent& event, AnswerDelta& out) {
  if (event.token >= 0) held_.push_back({event.token, text_->push(event.token)});
  certain_ += event.text;
  while (!held_.empty() && held_.front().text.size() <= certain_.size()) {
    // A token without text of its own is parsed when the text before it is.
    certain_.erase(0, held_.front().text.size());
    const int32_t token = held_.front().token;
    held_.pop_front();
    parse(token, out);
  }
  if (event.finish == FinishReason::kNone) return;
  if (!event.stop_text.empty()) {
    add(decoder_->push_text(certain_), out);  // the piece of a token before the stop string
    return;
  }
  for (const Held& held : std::exchange(held_, {}))
    parse(held.token, out);
}

}  // namespace fathom::serve
