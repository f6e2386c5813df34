#include "fathom/tokenizer/answer/answer_stream.h"

#include <utility>

namespace fathom {
namespace {

void add(AnswerDelta news, AnswerDelta& out) {
  out.reasoning += news.reasoning;
  out.content += news.content;
  for (ToolCallDelta& call : news.tool_calls)
    out.tool_calls.push_back(std::move(call));
}

}  // namespace

AnswerStream::AnswerStream(const Tokenizer& tokenizer,
                           const AnswerGrammar& grammar,
                           const std::vector<ToolDefinition>& tools,
                           bool holds_back)
    : decoder_(tokenizer, grammar, tools) {
  if (holds_back) text_.emplace(tokenizer, SpecialTokens::kSkip);
}

void AnswerStream::parse(int32_t token, AnswerDelta& out) {
  if (decoder_.in_reasoning()) ++reasoning_tokens_;
  add(decoder_.push(token), out);
}

AnswerDelta AnswerStream::read(const AnswerStep& step) {
  AnswerDelta out;
  if (text_) {
    read_held(step, out);
  } else if (step.token >= 0) {
    parse(step.token, out);
  }
  if (step.last) add(decoder_.finish(), out);
  return out;
}

void AnswerStream::read_held(const AnswerStep& step, AnswerDelta& out) {
  if (step.token >= 0) held_.push_back({step.token, text_->push(step.token)});
  certain_ += step.text;
  while (!held_.empty() && held_.front().text.size() <= certain_.size()) {
    // A token without text of its own is parsed when the text before it is.
    certain_.erase(0, held_.front().text.size());
    const int32_t token = held_.front().token;
    held_.pop_front();
    parse(token, out);
  }
  if (!step.last) return;
  if (!step.stop_text.empty()) {
    add(decoder_.push_text(certain_), out);  // the piece of a token before the stop string
    return;
  }
  for (const Held& held : std::exchange(held_, {}))
    parse(held.token, out);
}

}  // namespace fathom
