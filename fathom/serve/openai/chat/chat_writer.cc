#include "fathom/serve/openai/chat/chat_writer.h"

#include <utility>

#include "fathom/serve/answer/reply_form.h"
#include "fathom/serve/replay/replay_store.h"

namespace fathom::serve {
namespace {

// finish_reason, and stop_reason where a stop string ended the answer.
void write_end(JsonWriter& w, const ChoiceEnd& end) {
  w.key("finish_reason").string(finish_word(end));
  if (!end.stop_text.empty()) w.key("stop_reason").string(end.stop_text);
}

}  // namespace

ChatWriter::ChatWriter(ExchangePtr exchange, ChatStyle style)
    : exchange_(std::move(exchange)),
      style_(std::move(style)),
      choices_(static_cast<size_t>(style_.num_choices)) {
  if (!style_.new_call_id) style_.new_call_id = [] { return unguessable_id("call_"); };
}

void ChatWriter::open() {
  if (!style_.reply.stream || std::exchange(streaming_, true)) return;
  exchange_->begin_stream(event_stream_head(), {});
}

void ChatWriter::begin(const AnswerUsage& so_far,
                       const std::vector<PromptLogprobs>* prompt_logprobs) {
  prompt_tokens_ = so_far.prompt_tokens;
  if (prompt_logprobs != nullptr) prompt_logprobs_ = *prompt_logprobs;
  for (Choice& choice : choices_)
    choice.content = style_.echo;
  if (!style_.reply.stream) return;
  open();
  for (int i = 0; i < style_.num_choices; ++i) {
    send_piece(i, {.role = true});
    if (!style_.echo.empty()) send_piece(i, {.content = style_.echo});
  }
}

void ChatWriter::delta(const ChoiceDelta& delta) {
  Choice& choice = choices_[static_cast<size_t>(delta.choice)];
  completion_tokens_ = delta.completion_tokens;
  if (style_.reply.logprobs) {
    choice.tokens.insert(choice.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  }
  for (const ToolCallDelta& call : delta.parts.tool_calls)
    add_call(choice, call);
  if (!style_.reply.stream) {
    choice.reasoning += delta.parts.reasoning;
    choice.content += delta.parts.content;
    return;
  }
  // A chunk for each part, as clients look at one of them.
  if (!delta.parts.reasoning.empty()) {
    send_piece(delta.choice, {.reasoning = delta.parts.reasoning});
  }
  if (!delta.parts.content.empty()) send_piece(delta.choice, {.content = delta.parts.content});
  for (const ToolCallDelta& call : delta.parts.tool_calls)
    send_piece(delta.choice, {.call = &call});
}

void ChatWriter::add_call(Choice& choice, const ToolCallDelta& delta) {
  const auto index = static_cast<size_t>(delta.index);
  if (index >= choice.calls.size()) choice.calls.resize(index + 1);
  ToolCall& call = choice.calls[index];
  if (!delta.name.empty()) {
    call.name = delta.name;
    call.id = style_.new_call_id();
  }
  call.arguments += delta.arguments;
}

void ChatWriter::finish(const ChoiceEnd& end) {
  Choice& choice = choices_[static_cast<size_t>(end.choice)];
  choice.end = end;
  if (style_.replay != nullptr && !end.call_tokens.empty()) {
    style_.replay->record(choice.calls, end.call_tokens);
  }
  if (style_.reply.stream) send_piece(end.choice, {.end = &end});
}

void ChatWriter::end(const AnswerUsage& usage, const AnswerTimings& timings) {
  if (!style_.reply.stream) {
    exchange_->reply(json_reply(whole_reply(usage, timings)));
    return;
  }
  if (style_.reply.include_usage || style_.reply.timings) send_last_chunk(usage, timings);
  exchange_->send(std::string(kDoneEvent));
  exchange_->end_stream();
}

void ChatWriter::fail(const ApiError& error) {
  if (!streaming_) {
    exchange_->reply(openai_error_reply(error));
    return;
  }
  exchange_->send(data_event(openai_error_json(error)));
  exchange_->send(std::string(kDoneEvent));
  exchange_->end_stream();
}

void ChatWriter::write_reasoning(JsonWriter& w, std::string_view text) const {
  const ReasoningField field = style_.reasoning_field;
  if (field != ReasoningField::kReasoning) w.key("reasoning_content").string(text);
  if (field != ReasoningField::kReasoningContent) w.key("reasoning").string(text);
}

void ChatWriter::write_delta(JsonWriter& w, int choice, const Piece& piece) const {
  w.begin_object();
  if (piece.role) w.key("role").string("assistant").key("content").string("");
  if (!piece.reasoning.empty()) write_reasoning(w, piece.reasoning);
  if (!piece.content.empty()) w.key("content").string(piece.content);
  if (piece.call != nullptr) {
    const auto& calls = choices_[static_cast<size_t>(choice)].calls;
    const ToolCall& whole = calls[static_cast<size_t>(piece.call->index)];
    w.key("tool_calls").begin_array().begin_object().key("index").integer(piece.call->index);
    const bool is_first = !piece.call->name.empty();
    if (is_first) w.key("id").string(whole.id).key("type").string("function");
    w.key("function").begin_object();
    if (is_first) w.key("name").string(piece.call->name);
    w.key("arguments").string(piece.call->arguments).end_object().end_object().end_array();
  }
  w.end_object();
}

void ChatWriter::send_piece(int choice, const Piece& piece) {
  JsonWriter w;
  w.begin_object();
  write_reply_head(w, style_.reply, "chat.completion.chunk");
  w.key("choices").begin_array().begin_object().key("index").integer(choice).key("delta");
  write_delta(w, choice, piece);
  std::vector<TokenNews>& tokens = choices_[static_cast<size_t>(choice)].tokens;
  if (!tokens.empty()) {
    w.key("logprobs");
    write_chat_logprobs(w, tokens, *style_.reply.tokenizer);
    tokens.clear();
  }
  if (piece.end != nullptr) {
    write_end(w, *piece.end);
  } else {
    w.key("finish_reason").null();
  }
  w.end_object().end_array();
  if (style_.reply.continuous_usage) {
    w.key("usage");
    write_running_usage(w, prompt_tokens_, completion_tokens_);
  }
  w.end_object();
  exchange_->send(data_event(w.take()));
}

void ChatWriter::send_last_chunk(const AnswerUsage& usage, const AnswerTimings& timings) {
  JsonWriter w;
  w.begin_object();
  write_reply_head(w, style_.reply, "chat.completion.chunk");
  w.key("choices").begin_array().end_array();
  if (style_.reply.include_usage) {
    w.key("usage");
    write_usage(w, usage);
  }
  if (style_.reply.timings) {
    w.key("timings");
    write_timings(w, usage, timings);
  }
  w.end_object();
  exchange_->send(data_event(w.take()));
}

void ChatWriter::write_choice(JsonWriter& w, size_t index) {
  const Choice& choice = choices_[index];
  w.begin_object().key("index").integer(static_cast<int64_t>(index));
  w.key("message").begin_object().key("role").string("assistant").key("content");
  choice.content.empty() && !choice.calls.empty() ? w.null() : w.string(choice.content);
  if (!choice.reasoning.empty()) write_reasoning(w, choice.reasoning);
  if (!choice.calls.empty()) {
    w.key("tool_calls").begin_array();
    for (const ToolCall& call : choice.calls) {
      w.begin_object().key("id").string(call.id).key("type").string("function");
      w.key("function").begin_object().key("name").string(call.name);
      w.key("arguments").string(call.arguments).end_object().end_object();
    }
    w.end_array();
  }
  w.end_object();
  if (style_.reply.logprobs) {
    w.key("logprobs");
    write_chat_logprobs(w, choice.tokens, *style_.reply.tokenizer);
  }
  write_end(w, choice.end.value_or(ChoiceEnd{}));
  w.end_object();
}

std::string ChatWriter::whole_reply(const AnswerUsage& usage, const AnswerTimings& timings) {
  JsonWriter w;
  w.begin_object();
  write_reply_head(w, style_.reply, "chat.completion");
  w.key("choices").begin_array();
  for (size_t i = 0; i < choices_.size(); ++i)
    write_choice(w, i);
  w.end_array().key("usage");
  write_usage(w, usage);
  if (prompt_logprobs_) {
    w.key("prompt_logprobs");
    write_prompt_logprobs(w, *prompt_logprobs_, *style_.reply.tokenizer);
  }
  if (style_.reply.timings) {
    w.key("timings");
    write_timings(w, usage, timings);
  }
  w.end_object();
  return w.take();
}

}  // namespace fathom::serve
