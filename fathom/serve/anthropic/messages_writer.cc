#include "fathom/serve/anthropic/messages_writer.h"

#include <algorithm>
#include <utility>

#include "fathom/serve/answer/reply_form.h"
#include "fathom/serve/anthropic/tool_input.h"
#include "fathom/serve/replay/replay_store.h"

namespace fathom::serve {
namespace {

// What keeps a stream of this API alive is an event.
constexpr std::string_view kPing = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

// The API counts what came from the cache apart from input_tokens. Caching is automatic, so no
// tokens are written for the client's account.
void write_counts(JsonWriter& w, const AnswerUsage& usage) {
  w.begin_object();
  w.key("input_tokens").integer(usage.prompt_tokens - usage.cached_tokens);
  w.key("cache_creation_input_tokens").integer(0);
  w.key("cache_read_input_tokens").integer(usage.cached_tokens);
  w.key("output_tokens").integer(usage.completion_tokens);
  w.key("output_tokens_details").begin_object();
  w.key("thinking_tokens").integer(usage.reasoning_tokens).end_object();
  w.end_object();
}

// stop_reason and stop_sequence, null while there is no end.
void write_stop(JsonWriter& w, const std::optional<ChoiceEnd>& end) {
  w.key("stop_reason");
  end ? w.string(message_stop_reason(*end)) : w.null();
  w.key("stop_sequence");
  end && !end->stop_text.empty() ? w.string(end->stop_text) : w.null();
}

void begin_message(JsonWriter& w, const MessagesStyle& style) {
  w.begin_object().key("id").string(style.id).key("type").string("message");
  w.key("role").string("assistant").key("model").string(style.model);
}

HttpReply with_request_id(HttpReply reply, const Exchange& exchange) {
  reply.headers.emplace_back("request-id", exchange.id());
  return reply;
}

}  // namespace

std::string_view message_stop_reason(const ChoiceEnd& end) {
  if (end.finish == FinishReason::kLength) {
    return end.context_full ? "model_context_window_exceeded" : "max_tokens";
  }
  if (!end.stop_text.empty()) return "stop_sequence";
  return end.called_tools ? "tool_use" : "end_turn";
}

MessagesWriter::MessagesWriter(ExchangePtr exchange, MessagesStyle style)
    : exchange_(std::move(exchange)), style_(std::move(style)) {
  if (!style_.new_call_id) style_.new_call_id = [] { return unguessable_id("toolu_"); };
}

void MessagesWriter::open() {
  if (!style_.stream || std::exchange(streaming_, true)) return;
  exchange_->begin_stream(with_request_id(event_stream_head(), *exchange_),
                          {.keep_alive = std::string(kPing)});
}

void MessagesWriter::begin(const AnswerUsage& so_far, const std::vector<PromptLogprobs>*) {
  if (!style_.stream) return;
  open();
  JsonWriter w;
  w.begin_object().key("type").string("message_start").key("message");
  begin_message(w, style_);
  w.key("content").begin_array().end_array();
  write_stop(w, {});
  w.key("usage");
  write_counts(w, so_far);
  w.end_object().end_object();
  send("message_start", w);
}

void MessagesWriter::delta(const ChoiceDelta& delta) {
  // What belongs to a call that is open comes before text behind it.
  const std::vector<ToolCallDelta>& calls = delta.parts.tool_calls;
  const auto opened = std::ranges::find_if(calls, [](const auto& c) { return !c.name.empty(); });
  for (auto call = calls.begin(); call != opened; ++call)
    add_call(*call);
  add(Block::Kind::kThinking, delta.parts.reasoning);
  add(Block::Kind::kText, delta.parts.content);
  for (auto call = opened; call != calls.end(); ++call)
    add_call(*call);
}

void MessagesWriter::add(Block::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!is_open_ || blocks_.back().kind != kind) open_block({.kind = kind});
  blocks_.back().text += text;
  const bool is_text = kind == Block::Kind::kText;
  send_delta(is_text ? "text_delta" : "thinking_delta", is_text ? "text" : "thinking", text);
}

void MessagesWriter::add_call(const ToolCallDelta& delta) {
  if (!delta.name.empty()) {
    open_block(
        {.kind = Block::Kind::kToolUse, .call_id = style_.new_call_id(), .call_name = delta.name});
  }
  if (delta.arguments.empty()) return;
  blocks_.back().text += delta.arguments;
  send_delta("input_json_delta", "partial_json", delta.arguments);
}

void MessagesWriter::open_block(Block block) {
  close_block();
  is_open_ = true;
  blocks_.push_back(std::move(block));
  if (!style_.stream) return;
  const Block& opened = blocks_.back();
  JsonWriter w;
  w.begin_object().key("type").string("content_block_start");
  w.key("index").integer(static_cast<int64_t>(blocks_.size()) - 1).key("content_block");
  w.begin_object();
  switch (opened.kind) {
    case Block::Kind::kThinking:
      w.key("type").string("thinking").key("thinking").string("").key("signature").string("");
      break;
    case Block::Kind::kText:
      w.key("type").string("text").key("text").string("");
      break;
    case Block::Kind::kToolUse:
      w.key("type").string("tool_use").key("id").string(opened.call_id);
      w.key("name").string(opened.call_name).key("input").begin_object().end_object();
      break;
  }
  w.end_object().end_object();
  send("content_block_start", w);
}

void MessagesWriter::close_block() {
  if (!is_open_) return;
  is_open_ = false;
  if (!style_.stream) return;
  const Block& block = blocks_.back();
  if (block.kind == Block::Kind::kThinking) {
    send_delta("signature_delta", "signature", style_.signer->sign(block.text));
  }
  JsonWriter w;
  w.begin_object().key("type").string("content_block_stop");
  w.key("index").integer(static_cast<int64_t>(blocks_.size()) - 1).end_object();
  send("content_block_stop", w);
}

void MessagesWriter::send_delta(std::string_view type,
                                std::string_view field,
                                std::string_view text) {
  if (!style_.stream) return;
  JsonWriter w;
  w.begin_object().key("type").string("content_block_delta");
  w.key("index").integer(static_cast<int64_t>(blocks_.size()) - 1);
  w.key("delta").begin_object().key("type").string(type).key(field).string(text);
  w.end_object().end_object();
  send("content_block_delta", w);
}

void MessagesWriter::send(std::string_view name, JsonWriter& w) {
  exchange_->send(named_event(name, w.take()));
}

void MessagesWriter::finish(const ChoiceEnd& end) {
  close_block();
  end_ = end;
  if (style_.replay == nullptr || end.call_tokens.empty()) return;
  std::vector<ToolCall> calls;
  for (const Block& block : blocks_) {
    if (block.kind != Block::Kind::kToolUse) continue;
    calls.push_back({.id = block.call_id, .name = block.call_name, .arguments = block.text});
  }
  style_.replay->record(calls, end.call_tokens);
}

void MessagesWriter::end(const AnswerUsage& usage, const AnswerTimings&) {
  if (!style_.stream) {
    exchange_->reply(with_request_id(json_reply(whole_reply(usage)), *exchange_));
    return;
  }
  JsonWriter w;
  w.begin_object().key("type").string("message_delta").key("delta").begin_object();
  write_stop(w, end_);
  w.end_object().key("usage");
  write_counts(w, usage);
  w.end_object();
  send("message_delta", w);
  exchange_->send(named_event("message_stop", R"({"type":"message_stop"})"));
  exchange_->end_stream();
}

void MessagesWriter::fail(const ApiError& error) {
  if (!streaming_) {
    exchange_->reply(with_request_id(anthropic_error_reply(error, exchange_->id()), *exchange_));
    return;
  }
  exchange_->send(named_event("error", anthropic_error_json(error, exchange_->id())));
  exchange_->end_stream();
}

void MessagesWriter::write_block(JsonWriter& w, const Block& block) const {
  w.begin_object();
  switch (block.kind) {
    case Block::Kind::kThinking:
      w.key("type").string("thinking").key("thinking").string(block.text);
      w.key("signature").string(style_.signer->sign(block.text));
      break;
    case Block::Kind::kText:
      w.key("type").string("text").key("text").string(block.text);
      break;
    case Block::Kind::kToolUse:
      w.key("type").string("tool_use").key("id").string(block.call_id);
      w.key("name").string(block.call_name).key("input").json(tool_input(block.text));
      break;
  }
  w.end_object();
}

std::string MessagesWriter::whole_reply(const AnswerUsage& usage) const {
  JsonWriter w;
  begin_message(w, style_);
  w.key("content").begin_array();
  for (const Block& block : blocks_)
    write_block(w, block);
  w.end_array();
  write_stop(w, end_);
  w.key("usage");
  write_counts(w, usage);
  return w.end_object().take();
}

}  // namespace fathom::serve
