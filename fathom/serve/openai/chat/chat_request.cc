#include "fathom/serve/openai/chat/chat_request.h"

#include "fathom/serve/replay/replay_store.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

void read_max_tokens(Fields& fields, ChatAsk& ask) {
  for (const std::string_view name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto most = fields.integer(name, 1, INT64_MAX)) {
      ask.sampling.max_tokens = *most;
      ask.max_tokens_field = name;
    }
  }
}

void read_logprobs(Fields& fields, ChatAsk& ask, ReplyStyle& style) {
  style.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !style.logprobs) {
    fields.fail(bad_value("top_logprobs", "top_logprobs: needs logprobs to be true"));
  }
  ask.sampling.top_logprobs = style.logprobs ? static_cast<int>(top.value_or(0)) : -1;
  ask.prompt_logprobs = read_prompt_logprobs(fields);
  style.prompt_logprobs = ask.prompt_logprobs >= 0;
  if (style.prompt_logprobs && style.stream) {
    fields.fail(
        bad_value("prompt_logprobs", "prompt_logprobs: not with stream", "unsupported_parameter"));
  }
}

void read_messages(Fields& fields, const ServedModel& model, ChatAsk& ask) {
  const Json* messages = fields.value("messages");
  const Json* tools = fields.value("tools");
  if (!fields.ok()) return;
  if (messages == nullptr) {
    fields.fail(bad_value("messages", "messages: missing, expected an array"));
    return;
  }
  Result<ChatConversation> conversation =
      parse_chat(*messages, tools, model.chat_format->reading());
  if (!conversation.ok()) {
    fields.fail(api_error(conversation.status()));
    return;
  }
  ask.conversation = std::move(conversation).value();
  if (model.replay != nullptr) model.replay->recall(ask.conversation);
}

// Whether the answer begins a turn or goes on with the last one.
void read_turn(Fields& fields, ChatAsk& ask, ChatStyle& style) {
  const auto adds = fields.boolean("add_generation_prompt");
  const bool continues = fields.boolean("continue_final_message").value_or(false);
  const bool echoes = fields.boolean("echo").value_or(false);
  if (!fields.ok()) return;
  auto& messages = ask.conversation.messages;
  const bool is_assistant = !messages.empty() && messages.back().role == ChatRole::kAssistant;
  if (continues && adds.value_or(false)) {
    fields.fail(bad_value("continue_final_message",
                          "continue_final_message: not together with add_generation_prompt"));
  } else if (continues && !is_assistant) {
    fields.fail(bad_value("continue_final_message",
                          "continue_final_message: the last message is not of an assistant"));
  } else if (continues) {
    messages.back().end = TurnEnd::kContinue;
  } else if (adds == false) {
    ask.generation_prompt = GenerationPrompt::kNone;
  }
  if (echoes && is_assistant) style.echo = messages.back().content;
}

void refuse_other_forms(Fields& fields) {
  fields.refuse("functions", "is not supported, use tools");
  fields.refuse("function_call", "is not supported, use tool_choice");
  fields.refuse("modalities", "only text is supported", Json::array({Json::string("text")}));
  for (const std::string_view name : {"audio", "web_search_options", "chat_template", "documents"})
    fields.refuse(name, "is not supported");
}

}  // namespace

Parsed<ChatFields> read_chat(const Json& body,
                             const ServedModel& model,
                             std::string_view key_digest,
                             std::span<const std::string_view> besides) {
  Fields fields(body);
  for (const std::string_view name : besides)
    fields.ignore(name);
  ChatFields chat;
  ChatAsk& ask = chat.ask;
  ChatStyle& style = chat.style;
  style.reply = read_reply_style(fields, model, "chatcmpl-");
  if (model.chat_format == nullptr) fields.fail(api_error(unsupported(model.no_chat)));
  style.reasoning_field = model.reasoning_field;
  style.replay = model.replay;

  refuse_other_forms(fields);
  read_messages(fields, model, ask);
  read_turn(fields, ask, style);
  ask.thinking = read_thinking(fields);
  ask.tool_use = read_tool_use(fields);
  ask.shape = read_content_shape(fields, &ask.conversation.response_format);
  ask.sampling = chat_sampling(model);
  read_sampling(fields, model.vocab_size, ask.sampling);
  read_max_tokens(fields, ask);
  read_logprobs(fields, ask, style.reply);
  ask.num_choices = style.num_choices = read_num_choices(fields);
  ask.scope = read_cache_scope(fields, key_digest);
  read_idle_fields(fields);
  if (model.strict_api) fields.refuse_unknown();
  if (fields.error()) return *fields.error();
  return chat;
}

Parsed<ChatRequest> parse_chat_request(const HttpRequest& request,
                                       const ServedModel& model,
                                       std::string_view key_digest) {
  const ParsedBody body = parse_body(request.body);
  if (body.error) return *body.error;
  Parsed<ChatFields> fields = read_chat(body.json, model, key_digest);
  if (auto* error = std::get_if<ApiError>(&fields)) return std::move(*error);
  auto& chat = std::get<ChatFields>(fields);
  Result<AnswerSpec> answer = make_chat_answer(model, std::move(chat.ask));
  if (!answer.ok()) return api_error(answer.status());
  return ChatRequest{.answer = std::move(answer).value(), .style = std::move(chat.style)};
}

}  // namespace fathom::serve
