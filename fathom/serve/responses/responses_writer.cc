#include "fathom/serve/responses/responses_writer.h"

#include <algorithm>
#include <utility>

#include "fathom/serve/answer/reply_form.h"
#include "fathom/serve/replay/replay_store.h"
#include "fathom/serve/responses/sealed_reasoning.h"

namespace fathom::serve {
namespace {

void write_response_usage(JsonWriter& w, const AnswerUsage& usage) {
  w.begin_object().key("input_tokens").integer(usage.prompt_tokens);
  w.key("input_tokens_details").begin_object();
  w.key("cached_tokens").integer(usage.cached_tokens);
  w.key("cache_write_tokens").integer(usage.prompt_tokens - usage.cached_tokens).end_object();
  w.key("output_tokens").integer(usage.completion_tokens);
  w.key("output_tokens_details").begin_object();
  w.key("reasoning_tokens").integer(usage.reasoning_tokens).end_object();
  w.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens).end_object();
}

// The codes that a failed response may have in the API.
std::string_view failure_code(const ApiError& error) {
  if (error.status == 429) return "rate_limit_exceeded";
  return error.status < 500 ? "invalid_prompt" : "server_error";
}

}  // namespace

ResponsesWriter::ResponsesWriter(ExchangePtr exchange, ResponsesStyle style)
    : exchange_(std::move(exchange)), style_(std::move(style)) {
  if (!style_.new_id) style_.new_id = unguessable_id;
}

void ResponsesWriter::open() {
  if (!style_.stream || std::exchange(streaming_, true)) return;
  exchange_->begin_stream(event_stream_head(), {});
  send_response("response.created", {.status = "in_progress"});
  send_response("response.in_progress", {.status = "in_progress"});
}

// The events that begin a response tell nothing of it.
void ResponsesWriter::begin(const AnswerUsage&, const std::vector<PromptLogprobs>*) {
  open();
}

void ResponsesWriter::delta(const ChoiceDelta& delta) {
  // What belongs to a call that is open comes before text behind it.
  const std::vector<ToolCallDelta>& calls = delta.parts.tool_calls;
  const auto opened = std::ranges::find_if(calls, [](const auto& c) { return !c.name.empty(); });
  for (auto call = calls.begin(); call != opened; ++call)
    add_call(*call);
  add(Item::Kind::kReasoning, delta.parts.reasoning);
  add(Item::Kind::kMessage, delta.parts.content);
  for (auto call = opened; call != calls.end(); ++call)
    add_call(*call);
}

void ResponsesWriter::add(Item::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!is_open_ || items_.back().kind != kind) {
    const bool is_message = kind == Item::Kind::kMessage;
    open_item({.kind = kind, .id = style_.new_id(is_message ? "msg_" : "rs_")});
  }
  items_.back().text += text;
  send_delta(text);
}

void ResponsesWriter::add_call(const ToolCallDelta& delta) {
  if (!delta.name.empty()) {
    const bool is_custom = style_.custom_tools.contains(delta.name);
    open_item({.kind = is_custom ? Item::Kind::kCustomCall : Item::Kind::kFunctionCall,
               .id = style_.new_id(is_custom ? "ctc_" : "fc_"),
               .call_id = style_.new_id("call_"),
               .name = delta.name});
  }
  Item& item = items_.back();
  item.arguments += delta.arguments;
  const bool is_custom = item.kind == Item::Kind::kCustomCall;
  const std::string text = is_custom ? item.input.push(delta.arguments) : delta.arguments;
  item.text += text;
  if (!text.empty()) send_delta(text);
}

void ResponsesWriter::open_item(Item item) {
  close_item("completed");
  is_open_ = true;
  items_.push_back(std::move(item));
  if (!style_.stream) return;
  const Item& opened = items_.back();
  JsonWriter w;
  begin_event(w, "response.output_item.added");
  w.key("output_index").integer(static_cast<int64_t>(items_.size()) - 1).key("item");
  write_item(w, opened);
  send("response.output_item.added", w);
  if (has_parts(opened)) send_part("response.content_part.added", opened);
}

void ResponsesWriter::close_item(std::string_view status) {
  if (!is_open_) return;
  is_open_ = false;
  Item& item = items_.back();
  item.status = status;
  if (!style_.stream) return;
  send_done(item);
  if (has_parts(item)) send_part("response.content_part.done", item);
  JsonWriter w;
  begin_event(w, "response.output_item.done");
  w.key("output_index").integer(static_cast<int64_t>(items_.size()) - 1).key("item");
  write_item(w, item);
  send("response.output_item.done", w);
}

void ResponsesWriter::send_delta(std::string_view text) {
  if (!style_.stream) return;
  const Item& item = items_.back();
  std::string_view type;
  switch (item.kind) {
    case Item::Kind::kReasoning:
      type = "response.reasoning_text.delta";
      break;
    case Item::Kind::kMessage:
      type = "response.output_text.delta";
      break;
    case Item::Kind::kFunctionCall:
      type = "response.function_call_arguments.delta";
      break;
    case Item::Kind::kCustomCall:
      type = "response.custom_tool_call_input.delta";
      break;
  }
  JsonWriter w;
  begin_item_event(w, type, item);
  w.key("delta").string(text);
  if (item.kind == Item::Kind::kMessage) w.key("logprobs").begin_array().end_array();
  send(type, w);
}

void ResponsesWriter::send_done(const Item& item) {
  JsonWriter w;
  const auto finish = [&](std::string_view type, std::string_view field) {
    begin_item_event(w, type, item);
    w.key(field).string(item.text);
    if (item.kind == Item::Kind::kMessage) w.key("logprobs").begin_array().end_array();
    if (item.kind == Item::Kind::kFunctionCall) w.key("name").string(item.name);
    send(type, w);
  };
  switch (item.kind) {
    case Item::Kind::kReasoning:
      return finish("response.reasoning_text.done", "text");
    case Item::Kind::kMessage:
      return finish("response.output_text.done", "text");
    case Item::Kind::kFunctionCall:
      return finish("response.function_call_arguments.done", "arguments");
    case Item::Kind::kCustomCall:
      return finish("response.custom_tool_call_input.done", "input");
  }
}

void ResponsesWriter::send_part(std::string_view type, const Item& item) {
  JsonWriter w;
  begin_item_event(w, type, item);
  w.key("part");
  write_part(w, item);
  send(type, w);
}

void ResponsesWriter::send_response(std::string_view type, const State& state) {
  JsonWriter w;
  begin_event(w, type);
  w.key("response");
  write_response(w, state);
  send(type, w);
}

void ResponsesWriter::begin_event(JsonWriter& w, std::string_view type) {
  w.begin_object().key("type").string(type).key("sequence_number").integer(next_number_++);
}

void ResponsesWriter::begin_item_event(JsonWriter& w, std::string_view type, const Item& item) {
  begin_event(w, type);
  w.key("item_id").string(item.id);
  w.key("output_index").integer(static_cast<int64_t>(items_.size()) - 1);
  if (has_parts(item)) w.key("content_index").integer(0);
}

void ResponsesWriter::send(std::string_view type, JsonWriter& w) {
  w.end_object();
  exchange_->send(named_event(type, w.take()));
}

void ResponsesWriter::finish(const ChoiceEnd& end) {
  close_item(end.finish == FinishReason::kLength ? "incomplete" : "completed");
  end_ = end;
  if (style_.replay == nullptr || end.call_tokens.empty()) return;
  std::vector<ToolCall> calls;
  for (const Item& item : items_) {
    if (has_parts(item)) continue;
    calls.push_back({.id = item.call_id, .name = item.name, .arguments = item.arguments});
  }
  style_.replay->record(calls, end.call_tokens);
}

void ResponsesWriter::end(const AnswerUsage& usage, const AnswerTimings&) {
  const bool is_cut = end_ && end_->finish == FinishReason::kLength;
  const State state{.status = is_cut ? "incomplete" : "completed", .usage = &usage};
  if (!style_.stream) {
    JsonWriter w;
    write_response(w, state);
    exchange_->reply(json_reply(w.take()));
    return;
  }
  send_response(is_cut ? "response.incomplete" : "response.completed", state);
  exchange_->end_stream();
}

void ResponsesWriter::fail(const ApiError& error) {
  if (!streaming_) {
    exchange_->reply(openai_error_reply(error));
    return;
  }
  if (is_open_) items_.back().status = "incomplete";
  send_response("response.failed", {.status = "failed", .error = &error});
  exchange_->end_stream();
}

void ResponsesWriter::write_part(JsonWriter& w, const Item& item) {
  w.begin_object();
  if (item.kind == Item::Kind::kReasoning) {
    w.key("type").string("reasoning_text").key("text").string(item.text);
  } else {
    w.key("type").string("output_text").key("text").string(item.text);
    w.key("annotations").begin_array().end_array();
    w.key("logprobs").begin_array().end_array();
  }
  w.end_object();
}

void ResponsesWriter::write_item(JsonWriter& w, const Item& item) const {
  w.begin_object().key("id").string(item.id);
  const auto content = [&] {
    w.key("content").begin_array();
    if (!item.text.empty()) write_part(w, item);
    w.end_array();
  };
  switch (item.kind) {
    case Item::Kind::kReasoning:
      w.key("type").string("reasoning").key("summary").begin_array().end_array();
      content();
      if (style_.seal_reasoning) {
        w.key("encrypted_content").string(seal_reasoning(item.text));
      }
      break;
    case Item::Kind::kMessage:
      w.key("type").string("message").key("role").string("assistant");
      content();
      break;
    case Item::Kind::kFunctionCall:
      w.key("type").string("function_call").key("call_id").string(item.call_id);
      w.key("name").string(item.name).key("arguments").string(item.text);
      break;
    case Item::Kind::kCustomCall:
      w.key("type").string("custom_tool_call").key("call_id").string(item.call_id);
      w.key("name").string(item.name).key("input").string(item.text);
      break;
  }
  w.key("status").string(item.status).end_object();
}

void ResponsesWriter::write_response(JsonWriter& w, const State& state) const {
  w.begin_object().key("id").string(style_.id).key("object").string("response");
  w.key("created_at").integer(style_.created_s).key("status").string(state.status);
  w.key("error");
  if (state.error != nullptr) {
    w.begin_object().key("code").string(failure_code(*state.error));
    w.key("message").string(state.error->message).end_object();
  } else {
    w.null();
  }
  w.key("incomplete_details");
  if (state.status == "incomplete") {
    w.begin_object().key("reason").string("max_output_tokens").end_object();
  } else {
    w.null();
  }
  w.key("model").string(style_.model).key("output").begin_array();
  for (const Item& item : items_)
    write_item(w, item);
  w.end_array();
  for (const auto& [name, value] : style_.echo.members())
    w.key(name).json(value);
  w.key("usage");
  if (state.usage != nullptr) {
    write_response_usage(w, *state.usage);
  } else {
    w.null();
  }
  w.end_object();
}

}  // namespace fathom::serve
