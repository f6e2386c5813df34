#include "fathom/serve/anthropic/messages_request.h"

#include "fathom/serve/answer/reply_form.h"
#include "fathom/serve/anthropic/message_turns.h"
#include "fathom/serve/replay/replay_store.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

void read_limits(Fields& fields, MessagesPurpose purpose, ChatAsk& ask) {
  const auto most = fields.integer("max_tokens", 1, INT64_MAX);
  if (!most && purpose == MessagesPurpose::kAnswer) {
    fields.fail(bad_value("max_tokens", "max_tokens: missing, expected an integer of at least 1"));
  }
  if (most) ask.sampling.max_tokens = *most;
  ask.over_context = OverContext::kEndWithContext;
}

// The ranges are those of the API, which has temperatures up to 1.
void read_choice_of_tokens(Fields& fields, int64_t vocab_size, SamplingParams& sampling) {
  if (const auto t = fields.number("temperature", 0, 1)) {
    sampling.temperature = static_cast<float>(*t);
  }
  if (const auto p = fields.number("top_p", 0, 1, true)) sampling.top_p = static_cast<float>(*p);
  if (const auto k = fields.integer("top_k", 0, vocab_size)) sampling.top_k = *k;
  fields.array("stop_sequences", kMaxStopStrings);
  read_stop(fields, "stop_sequences", sampling);
}

// The model has no budget for its thinking: budget_tokens is checked and does nothing.
ThinkingAsk read_message_thinking(Fields& fields) {
  ThinkingAsk ask = read_thinking(fields);
  if (const Json* json = fields.object("thinking")) {
    Fields thinking(*json, fields.at("thinking"));
    thinking.integer("budget_tokens", 1, INT64_MAX);
    if (thinking.error()) fields.fail(*thinking.error());
  }
  return ask;
}

void read_output_config(Fields& fields, ChatAsk& ask) {
  const Json* json = fields.object("output_config");
  if (json == nullptr) return;
  Fields config(*json, fields.at("output_config"));
  if (const auto effort = read_effort(config, "effort")) ask.thinking.effort = effort;
  if (const Json* format = config.object("format")) {
    Fields inner(*format, config.at("format"));
    const auto type = inner.word("type", {"json_schema"});
    if (!type && inner.ok()) {
      const std::string where = inner.at("type");
      inner.fail(bad_value(where, str_cat(where, ": missing, expected json_schema")));
    }
    ask.shape = read_schema_shape(inner, "schema", &ask.conversation.response_format);
    if (inner.error()) config.fail(*inner.error());
  }
  if (config.error()) fields.fail(*config.error());
}

std::vector<ToolDefinition> read_message_tools(Fields& fields) {
  std::vector<ToolDefinition> tools;
  const Json* array = fields.array("tools", kMaxChatTools);
  if (array == nullptr) return tools;
  std::set<std::string> skipped;
  for (size_t i = 0; i < array->items().size() && fields.ok(); ++i) {
    const Json& json = array->items()[i];
    const std::string place = str_cat("tools[", i, "]");
    if (!json.is_object()) {
      fields.fail(
          bad_value(place, str_cat(place, ": found ", json.kind_name(), ", expected an object")));
      break;
    }
    Fields tool(json, place);
    const std::string type = tool.text("type", kMaxTextBytes).value_or("custom");
    if (type == "custom") {
      tools.push_back(read_flat_tool(tool, json, "input_schema"));
      if (tool.ok() && tool.value("input_schema") == nullptr) {
        const std::string where = tool.at("input_schema");
        tool.fail(bad_value(where, str_cat(where, ": missing, expected a JSON schema")));
      }
    } else {
      skipped.insert(type);
    }
    if (tool.error()) fields.fail(*tool.error());
  }
  if (fields.ok()) log_skipped_tools("messages", skipped);
  return tools;
}

ToolUse read_message_tool_choice(Fields& fields) {
  ToolUse use;
  const Json* json = fields.object("tool_choice");
  if (json == nullptr) return use;
  Fields choice(*json, fields.at("tool_choice"));
  const auto type = choice.word("type", {"auto", "any", "tool", "none"});
  use.parallel = !choice.boolean("disable_parallel_tool_use").value_or(false);
  using Kind = ToolChoice::Kind;
  if (!type && choice.ok()) {
    const std::string where = choice.at("type");
    choice.fail(bad_value(where, str_cat(where, ": missing, expected auto, any, tool or none")));
  }
  if (type == 1u) use.choice.kind = Kind::kRequired;
  if (type == 2u) use.choice = {Kind::kNamed, choice.required_text("name", kMaxIdBytes)};
  if (type == 3u) use.choice.kind = Kind::kNone;
  if (choice.error()) fields.fail(*choice.error());
  return use;
}

// What is known and does nothing here: caches are automatic, there is one tier and one place.
void read_idle_message_fields(Fields& fields) {
  if (const Json* json = fields.object("metadata")) {
    Fields metadata(*json, fields.at("metadata"));
    metadata.text("user_id", kMaxIdBytes);
    if (metadata.error()) fields.fail(*metadata.error());
  }
  for (const std::string_view name :
       {"cache_control", "service_tier", "container", "context_management", "inference_geo",
        "speed", "diagnostics", "user_profile_id", "betas", "anthropic_version"}) {
    fields.ignore(name);
  }
  fields.refuse("mcp_servers", "servers of tools are not supported", Json::array());
}

// Clients look for these words to shorten a conversation that has grown too long.
ApiError in_words_of_clients(ApiError error) {
  if (error.code == "context_length_exceeded") {
    error.message.insert(0, "prompt is too long: ");
  }
  return error;
}

}  // namespace

Parsed<MessagesFields> read_messages(const Json& body,
                                     const ServedModel& model,
                                     std::string_view key_digest,
                                     const ThinkingSigner& signer,
                                     MessagesPurpose purpose) {
  Fields fields(body);
  MessagesFields read;
  ChatAsk& ask = read.ask;
  MessagesStyle& style = read.style;
  style.id = unguessable_id("msg_");
  style.model = read_model_name(fields, model);
  style.stream = fields.boolean("stream").value_or(false);
  style.replay = model.replay;
  style.signer = &signer;
  if (model.chat_format == nullptr) {
    fields.fail(api_error(unsupported(model.no_chat)));
    return *fields.error();
  }

  PlacedConversation turns = read_message_turns(fields, model.chat_format->reading(), signer);
  read.places = std::move(turns.places);
  ask.conversation = std::move(turns.conversation);
  ask.conversation.tools = read_message_tools(fields);
  if (model.replay != nullptr && fields.ok()) model.replay->recall(ask.conversation);
  ask.tool_use = read_message_tool_choice(fields);
  ask.thinking = read_message_thinking(fields);
  read_output_config(fields, ask);
  ask.sampling = chat_sampling(model);
  read_choice_of_tokens(fields, model.vocab_size, ask.sampling);
  read_limits(fields, purpose, ask);
  ask.scope.key_digest = key_digest;
  read_idle_message_fields(fields);
  if (model.strict_api) fields.refuse_unknown();
  if (fields.error()) return *fields.error();
  return read;
}

Parsed<MessagesRequest> parse_messages_request(const HttpRequest& request,
                                               const ServedModel& model,
                                               std::string_view key_digest,
                                               const ThinkingSigner& signer) {
  const ParsedBody body = parse_body(request.body);
  if (body.error) return *body.error;
  Parsed<MessagesFields> fields =
      read_messages(body.json, model, key_digest, signer, MessagesPurpose::kAnswer);
  if (auto* error = std::get_if<ApiError>(&fields)) return std::move(*error);
  auto& read = std::get<MessagesFields>(fields);
  Result<AnswerSpec> answer = make_chat_answer(model, std::move(read.ask));
  if (!answer.ok()) {
    return in_words_of_clients(placed_error(answer.status(), read.places));
  }
  return MessagesRequest{.answer = std::move(answer).value(), .style = std::move(read.style)};
}

HttpReply count_message_tokens(const HttpRequest& request,
                               const ServedModel& model,
                               const ThinkingSigner& signer,
                               std::string_view request_id) {
  const ParsedBody body = parse_body(request.body);
  if (body.error) return anthropic_error_reply(*body.error, request_id);
  const Parsed<MessagesFields> fields =
      read_messages(body.json, model, {}, signer, MessagesPurpose::kCount);
  if (const auto* error = std::get_if<ApiError>(&fields)) {
    return anthropic_error_reply(*error, request_id);
  }
  const auto& read = std::get<MessagesFields>(fields);
  const Result<ChatPrompt> prompt = make_chat_prompt(model, read.ask);
  if (!prompt.ok()) {
    return anthropic_error_reply(placed_error(prompt.status(), read.places), request_id);
  }
  JsonWriter w;
  w.begin_object().key("input_tokens").integer(static_cast<int64_t>(prompt->tokens.size()));
  return json_reply(w.end_object().take());
}

}  // namespace fathom::serve
