#include "fathom/serve/responses/responses_request.h"

#include <cmath>

#include "fathom/serve/answer/reply_form.h"
#include "fathom/serve/prompt/turn_reader.h"
#include "fathom/serve/replay/replay_store.h"
#include "fathom/serve/responses/response_tools.h"
#include "fathom/serve/responses/response_turns.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMaxIncludes = 64;

void read_reasoning(Fields& fields, ChatAsk& ask) {
  ask.thinking = read_thinking(fields);
  const Json* json = fields.object("reasoning");
  if (json == nullptr) return;
  Fields reasoning(*json, fields.at("reasoning"));
  if (const auto effort = read_effort(reasoning, "effort")) ask.thinking.effort = effort;
  if (reasoning.error()) fields.fail(*reasoning.error());
}

void read_text(Fields& fields, ChatAsk& ask) {
  const Json* json = fields.object("text");
  if (json == nullptr) return;
  Fields text(*json, fields.at("text"));
  if (const Json* object = text.object("format")) {
    Fields format(*object, text.at("format"));
    const auto type = format.word("type", {"text", "json_object", "json_schema"});
    if (!type && format.ok()) {
      const std::string where = format.at("type");
      format.fail(
          bad_value(where, str_cat(where, ": missing, expected text, json_object or json_schema")));
    }
    if (type == 1u) {
      ask.shape = ContentShape{.kind = GrammarSpec::Kind::kJson, .field = text.at("format")};
      ask.conversation.response_format.kind = ResponseFormat::Kind::kJsonObject;
    } else if (type == 2u) {
      ask.shape = read_schema_shape(format, "schema", &ask.conversation.response_format);
    }
    if (format.error()) text.fail(*format.error());
  }
  if (text.error()) fields.fail(*text.error());
}

void read_includes(Fields& fields, ResponsesStyle& style) {
  const Json* include = fields.array("include", kMaxIncludes);
  if (include == nullptr) return;
  for (size_t i = 0; i < include->items().size(); ++i) {
    const Json& item = include->items()[i];
    const std::string place = str_cat("include[", i, "]");
    if (!item.is_string()) {
      fields.fail(
          bad_value(place, str_cat(place, ": found ", item.kind_name(), ", expected a string")));
    } else if (item.as_string() == "reasoning.encrypted_content") {
      style.seal_reasoning = true;
    } else if (item.as_string() == "message.output_text.logprobs") {
      fields.fail(bad_value(place,
                            str_cat(place,
                                    ": log-probabilities are not supported here, use "
                                    "/v1/chat/completions"),
                            "unsupported_parameter"));
    }
  }
}

void refuse_state(Fields& fields) {
  constexpr std::string_view kStateless = "nothing is stored, send the whole conversation in input";
  fields.refuse("previous_response_id", kStateless);
  fields.refuse("conversation", kStateless);
  fields.refuse("prompt", "stored prompts are not supported");
  fields.refuse("background", "answers in the background are not supported", Json::boolean(false));
  fields.refuse("top_logprobs", "log-probabilities are not supported here", Json::integer(0));
  fields.boolean("store");
  fields.word("truncation", {"auto", "disabled"});
  for (const std::string_view name : {"client_metadata", "stream_options", "max_tool_calls",
                                      "context_management", "moderation", "prompt_cache_options"}) {
    fields.ignore(name);
  }
}

// A float as somebody wrote it: 0.95, not 0.949999988.
Json written(float value) {
  constexpr double kPlaces = 1e6;
  return Json::number(std::round(static_cast<double>(value) * kPlaces) / kPlaces);
}

Json echo_of(const Json& body, const ChatAsk& ask) {
  const auto given = [&](std::string_view name, Json otherwise) {
    const Json* value = body.find(name);
    return value == nullptr || value->is_null() ? std::move(otherwise) : *value;
  };
  const auto inner = [&](std::string_view object, std::string_view name, Json otherwise) {
    const Json* outer = body.find(object);
    const Json* value = outer == nullptr ? nullptr : outer->find(name);
    return value == nullptr || value->is_null() ? std::move(otherwise) : *value;
  };
  std::vector<JsonMember> text = {
      {"format", inner("text", "format", Json::object({{"type", Json::string("text")}}))}};
  if (Json verbosity = inner("text", "verbosity", {}); !verbosity.is_null()) {
    text.emplace_back("verbosity", std::move(verbosity));
  }
  return Json::object({
      {"background", Json::boolean(false)},
      {"instructions", given("instructions", {})},
      {"max_output_tokens", given("max_output_tokens", {})},
      {"max_tool_calls", given("max_tool_calls", {})},
      {"metadata", given("metadata", Json::object())},
      {"parallel_tool_calls", Json::boolean(ask.tool_use.parallel)},
      {"previous_response_id", {}},
      {"prompt_cache_key", given("prompt_cache_key", {})},
      {"reasoning", Json::object({{"effort", inner("reasoning", "effort", {})}, {"summary", {}}})},
      {"safety_identifier", given("safety_identifier", {})},
      {"service_tier", Json::string("default")},
      {"store", Json::boolean(false)},
      {"temperature", written(ask.sampling.temperature)},
      {"text", Json::object(std::move(text))},
      {"tool_choice", given("tool_choice", Json::string("auto"))},
      {"tools", given("tools", Json::array())},
      {"top_logprobs", Json::integer(0)},
      {"top_p", written(ask.sampling.top_p)},
      {"truncation", Json::string("disabled")},
      {"user", given("user", {})},
  });
}

}  // namespace

Parsed<ResponsesFields> read_responses(const Json& body,
                                       const ServedModel& model,
                                       std::string_view key_digest) {
  Fields fields(body);
  ResponsesFields read;
  ChatAsk& ask = read.ask;
  ResponsesStyle& style = read.style;
  // What all of OpenAI's replies have; some of it is not of this API and stays unused.
  const ReplyStyle reply = read_reply_style(fields, model, "resp_");
  style.id = reply.id;
  style.model = reply.model;
  style.created_s = reply.created_s;
  style.stream = reply.stream;
  style.replay = model.replay;
  if (model.chat_format == nullptr) {
    fields.fail(api_error(unsupported(model.no_chat)));
    return *fields.error();
  }

  refuse_state(fields);
  PlacedConversation turns = read_response_turns(fields, model.chat_format->reading());
  read.places = std::move(turns.places);
  ask.conversation = std::move(turns.conversation);
  ResponseTools tools = read_response_tools(fields);
  ask.conversation.tools = std::move(tools.tools);
  ask.tool_use = std::move(tools.use);
  style.custom_tools = std::move(tools.custom);
  if (model.replay != nullptr && fields.ok()) model.replay->recall(ask.conversation);
  read_reasoning(fields, ask);
  read_text(fields, ask);
  read_includes(fields, style);
  ask.sampling = chat_sampling(model);
  read_sampling(fields, model.vocab_size, ask.sampling);
  if (const auto most = fields.integer("max_output_tokens", 1, INT64_MAX)) {
    ask.sampling.max_tokens = *most;
  }
  ask.max_tokens_field = "max_output_tokens";
  ask.scope = read_cache_scope(fields, key_digest);
  read_idle_fields(fields);
  if (model.strict_api) fields.refuse_unknown();
  if (fields.error()) return *fields.error();
  style.echo = echo_of(body, ask);
  return read;
}

Parsed<ResponsesRequest> parse_responses_request(const HttpRequest& request,
                                                 const ServedModel& model,
                                                 std::string_view key_digest) {
  const ParsedBody body = parse_body(request.body);
  if (body.error) return *body.error;
  Parsed<ResponsesFields> fields = read_responses(body.json, model, key_digest);
  if (auto* error = std::get_if<ApiError>(&fields)) return std::move(*error);
  auto& read = std::get<ResponsesFields>(fields);
  Result<AnswerSpec> answer = make_chat_answer(model, std::move(read.ask));
  if (!answer.ok()) return placed_error(answer.status(), read.places);
  return ResponsesRequest{.answer = std::move(answer).value(), .style = std::move(read.style)};
}

HttpReply count_response_tokens(const HttpRequest& request, const ServedModel& model) {
  const ParsedBody body = parse_body(request.body);
  if (body.error) return openai_error_reply(*body.error);
  const Parsed<ResponsesFields> fields = read_responses(body.json, model, {});
  if (const auto* error = std::get_if<ApiError>(&fields)) return openai_error_reply(*error);
  const auto& read = std::get<ResponsesFields>(fields);
  const Result<ChatPrompt> prompt = make_chat_prompt(model, read.ask);
  if (!prompt.ok()) {
    return openai_error_reply(placed_error(prompt.status(), read.places));
  }
  JsonWriter w;
  w.begin_object().key("object").string("response.input_tokens");
  w.key("input_tokens").integer(static_cast<int64_t>(prompt->tokens.size()));
  return json_reply(w.end_object().take());
}

}  // namespace fathom::serve
