#include "fathom/serve/openai/small_routes.h"

#include <algorithm>
#include <functional>
#include <span>

#include "fathom/serve/answer/reply_form.h"
#include "fathom/serve/openai/chat/chat_request.h"
#include "fathom/serve/openai/completions/completion_request.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMaxTokens = 16ll << 20;  // of detokenize

void write_model(JsonWriter& w, const ServedModel& model, std::string_view name) {
  w.begin_object().key("id").string(name).key("object").string("model");
  w.key("created").integer(model.created_s).key("owned_by").string("fathom");
  w.key("root").string(model.name()).key("parent").null();
  w.key("max_model_len").integer(model.max_model_len);
  w.key("meta").begin_object().key("params").integer(model.num_params);
  w.key("bytes").integer(model.weight_bytes).key("formats").begin_array();
  for (const std::string& format : model.formats)
    w.string(format);
  w.end_array().key("vocab").integer(model.vocab_size).end_object().end_object();
}

void write_capabilities(JsonWriter& w, const ServedModel& model) {
  w.begin_array().string("completion");
  if (model.chat_format != nullptr) {
    w.string("chat");
    ChatOptions thinking = model.chat_options;
    thinking.thinking = Thinking::kOn;
    const AnswerGrammar grammar = model.chat_format->answer_grammar(thinking);
    if (grammar.tool_calls != AnswerGrammar::ToolCalls::kNone) w.string("tools");
    if (grammar.starts_in_reasoning) w.string("thinking");
  }
  w.end_array();
}

// Reads a body and gives it to `answer`; errors of the body are the reply.
HttpReply with_body(const HttpRequest& request,
                    const std::function<HttpReply(const Json&)>& answer) {
  const ParsedBody body = parse_body(request.body);
  return body.error ? openai_error_reply(*body.error) : answer(body.json);
}

using AnswerToPrompt = std::function<HttpReply(const ChatPrompt&)>;

// The prompt of a chat request, or the error as a reply. `besides`: as of read_chat().
HttpReply with_chat_prompt(const Json& body,
                           const ServedModel& model,
                           const AnswerToPrompt& answer,
                           std::span<const std::string_view> besides = {}) {
  const Parsed<ChatFields> fields = read_chat(body, model, {}, besides);
  if (const auto* error = std::get_if<ApiError>(&fields)) return openai_error_reply(*error);
  const auto prompt = make_chat_prompt(model, std::get<ChatFields>(fields).ask);
  return prompt.ok() ? answer(*prompt) : openai_error_reply(api_error(prompt.status()));
}

HttpReply with_chat_prompt(const HttpRequest& request,
                           const ServedModel& model,
                           const AnswerToPrompt& answer) {
  return with_body(request,
                   [&](const Json& body) { return with_chat_prompt(body, model, answer); });
}

ApiError no_tokenizer(const std::string& field) {
  return bad_value(field, str_cat(field, ": the model has no tokenizer, and its tokens no text"),
                   "unsupported_parameter");
}

HttpReply tokens_reply(const ServedModel& model, const std::vector<int32_t>& ids, bool strings) {
  JsonWriter w;
  w.begin_object().key("count").integer(static_cast<int64_t>(ids.size()));
  w.key("max_model_len").integer(model.max_model_len).key("tokens");
  write_ids(w, ids);
  if (strings) {
    w.key("token_strs").begin_array();
    for (const int32_t id : ids)
      w.string(model.tokenizer->token_text(id));
    w.end_array();
  }
  w.end_object();
  return json_reply(w.take());
}

}  // namespace

HttpReply list_models(const ServedModel& model) {
  JsonWriter w;
  w.begin_object().key("object").string("list").key("data").begin_array();
  for (const std::string& name : model.names)
    write_model(w, model, name);
  w.end_array().key("models").begin_array();
  for (const std::string& name : model.names) {
    w.begin_object().key("name").string(name).key("model").string(name).key("capabilities");
    write_capabilities(w, model);
    w.end_object();
  }
  w.end_array().end_object();
  return json_reply(w.take());
}

HttpReply show_model(const ServedModel& model, std::string_view id) {
  if (std::ranges::find(model.names, id) == model.names.end()) {
    return openai_error_reply({.status = 404,
                               .code = "model_not_found",
                               .message = str_cat("model \"", id.substr(0, 128),
                                                  "\" is not served; GET /v1/models lists those "
                                                  "that are"),
                               .param = "model"});
  }
  JsonWriter w;
  write_model(w, model, id);
  return json_reply(w.take());
}

HttpReply tokenize(const HttpRequest& request, const ServedModel& model) {
  return with_body(request, [&](const Json& body) {
    Fields fields(body);
    const bool strings = fields.boolean("return_token_strs").value_or(false);
    if (strings && model.tokenizer == nullptr) fields.fail(no_tokenizer("return_token_strs"));
    fields.boolean("add_special_tokens");  // a chat has those of its format, whatever this says
    if (fields.error()) return openai_error_reply(*fields.error());
    if (body.find("messages") != nullptr) {
      constexpr std::string_view kBesides[] = {"return_token_strs", "add_special_tokens"};
      const auto reply = [&](const ChatPrompt& prompt) {
        return tokens_reply(model, prompt.tokens, strings);
      };
      return with_chat_prompt(body, model, reply, kBesides);
    }
    read_model_name(fields, model);
    const std::vector<EchoedPrompt> prompts = read_prompts(fields, model);
    if (model.strict_api) fields.refuse_unknown();
    if (fields.error()) return openai_error_reply(*fields.error());
    if (prompts.size() != 1) {
      return openai_error_reply(bad_value(
          "prompt", str_cat("prompt: found ", prompts.size(), " prompts, expected one string")));
    }
    return tokens_reply(model, prompts.front().tokens, strings);
  });
}

HttpReply detokenize(const HttpRequest& request, const ServedModel& model) {
  return with_body(request, [&](const Json& body) {
    Fields fields(body);
    read_model_name(fields, model);
    const Json* tokens = fields.array("tokens", kMaxTokens);
    if (fields.ok() && tokens == nullptr) {
      fields.fail(bad_value("tokens", "tokens: missing, expected an array of token ids"));
    }
    std::vector<int32_t> ids;
    if (fields.ok()) ids = read_token_ids(fields, *tokens, "tokens", model.vocab_size);
    if (model.tokenizer == nullptr) fields.fail(no_tokenizer("tokens"));
    if (model.strict_api) fields.refuse_unknown();
    if (fields.error()) return openai_error_reply(*fields.error());
    JsonWriter w;
    w.begin_object().key("prompt").string(model.tokenizer->decode(ids)).end_object();
    return json_reply(w.take());
  });
}

HttpReply render_completion(const HttpRequest& request, const ServedModel& model) {
  const Parsed<CompletionRequest> parsed = parse_completion_request(request, model, {});
  if (const auto* error = std::get_if<ApiError>(&parsed)) return openai_error_reply(*error);
  JsonWriter w;
  w.begin_array();
  for (const AnswerSpec& answer : std::get<CompletionRequest>(parsed).answers) {
    w.begin_object().key("token_ids");
    write_ids(w, answer.request.prompt);
    w.end_object();
  }
  w.end_array();
  return json_reply(w.take());
}

HttpReply render_chat(const HttpRequest& request, const ServedModel& model) {
  return with_chat_prompt(request, model, [](const ChatPrompt& prompt) {
    JsonWriter w;
    w.begin_object().key("token_ids");
    write_ids(w, prompt.tokens);
    w.end_object();
    return json_reply(w.take());
  });
}

HttpReply count_chat_tokens(const HttpRequest& request, const ServedModel& model) {
  return with_chat_prompt(request, model, [](const ChatPrompt& prompt) {
    JsonWriter w;
    w.begin_object().key("object").string("chat.completion.input_tokens");
    w.key("input_tokens").integer(static_cast<int64_t>(prompt.tokens.size())).end_object();
    return json_reply(w.take());
  });
}

}  // namespace fathom::serve
