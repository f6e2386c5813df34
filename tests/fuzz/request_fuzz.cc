// F7: bodies of chat completions, completions, tokenize, messages and responses. The first byte
// picks the route (the last three share one), the chat format and the server's flags; the rest is
// the body. Oracles: a body is refused with a status of the client's, a message and valid JSON, or
// it becomes a request that the engine would take: ids in the vocabulary, sampling in its ranges,
// room in the context. Read again from its own printing, it becomes the same request. What render
// answers is what the real route runs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fathom/serve/anthropic/messages_request.h"
#include "fathom/serve/openai/chat/chat_request.h"
#include "fathom/serve/openai/completions/completion_request.h"
#include "fathom/serve/openai/small_routes.h"
#include "fathom/serve/responses/responses_request.h"
#include "fathom/text/utf8.h"
#include "tests/support/test_server.h"

namespace {

using fathom::Json;
using fathom::serve::AnswerSpec;
using fathom::serve::ApiError;
using fathom::serve::HttpReply;
using fathom::serve::HttpRequest;
using fathom::serve::Parsed;
using fathom::serve::ServedModel;
using fathom::serve::TestServer;

void require(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "%.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void check_error(const ApiError& error) {
  require(error.status == 400 || error.status == 404, "an error that is not the client's");
  require(!error.message.empty() && !error.code.empty(), "an error without words");
  const std::string json = openai_error_json(error);
  require(json.size() < 4'096, "an error that is long");
  require(fathom::parse_json(json, {}, "error").ok(), "an error that is no JSON");
}

void check_spec(const AnswerSpec& spec, const ServedModel& model) {
  const auto& request = spec.request;
  require(!request.prompt.empty(), "an empty prompt");
  require(std::ranges::all_of(request.prompt,
                              [&](int32_t id) { return id >= 0 && id < model.vocab_size; }),
          "an id outside the vocabulary");
  const fathom::Status sampling = validate(request.sampling, model.vocab_size);
  require(sampling.ok(), sampling.ok() ? "" : sampling.message());
  require(request.sampling.max_tokens.has_value(), "no max_tokens");
  require(static_cast<int64_t>(request.prompt.size()) + *request.sampling.max_tokens <=
              model.max_model_len,
          "beyond the context");
  require(spec.num_choices >= 1 && spec.num_choices <= fathom::serve::kMaxChoices, "choices");
  require(request.prompt_logprobs >= -1 && request.prompt_logprobs <= 20, "prompt_logprobs");
}

void check_same(const AnswerSpec& a, const AnswerSpec& b) {
  require(a.request.prompt == b.request.prompt, "another prompt after printing");
  require(a.request.cache_salt == b.request.cache_salt, "another salt after printing");
  require(a.request.sampling.max_tokens == b.request.sampling.max_tokens, "another max_tokens");
  require(a.request.sampling.stop == b.request.sampling.stop, "another stop");
}

// The body as this program prints it; the body itself if it is no JSON.
std::string printed(const std::string& body) {
  const auto parsed = fathom::serve::parse_body(body);
  return parsed.error ? body : fathom::dump_json(parsed.json);
}

void fuzz_chat(const HttpRequest& request, const ServedModel& model) {
  const auto first = parse_chat_request(request, model, "digest");
  const auto second =
      parse_chat_request(fathom::serve::post_of(printed(request.body)), model, "digest");
  require(first.index() == second.index(), "another verdict after printing");
  if (const auto* error = std::get_if<ApiError>(&first)) return check_error(*error);
  const auto& chat = std::get<fathom::serve::ChatRequest>(first);
  check_spec(chat.answer, model);
  check_same(chat.answer, std::get<fathom::serve::ChatRequest>(second).answer);
  const HttpReply rendered = render_chat(request, model);
  std::string ids;
  for (const int32_t id : chat.answer.request.prompt)
    ids += fathom::str_cat(ids.empty() ? "" : ",", id);
  require(rendered.body == fathom::str_cat("{\"token_ids\":[", ids, "]}"), "another rendering");
}

void fuzz_completion(const HttpRequest& request, const ServedModel& model) {
  const auto first = parse_completion_request(request, model, "");
  const auto second =
      parse_completion_request(fathom::serve::post_of(printed(request.body)), model, "");
  require(first.index() == second.index(), "another verdict after printing");
  if (const auto* error = std::get_if<ApiError>(&first)) return check_error(*error);
  const auto& a = std::get<fathom::serve::CompletionRequest>(first).answers;
  const auto& b = std::get<fathom::serve::CompletionRequest>(second).answers;
  require(!a.empty() && a.size() == b.size() && a.size() <= fathom::serve::kMaxPrompts, "prompts");
  for (size_t i = 0; i < a.size(); ++i) {
    check_spec(a[i], model);
    check_same(a[i], b[i]);
  }
}

void fuzz_small(const HttpRequest& request, const ServedModel& model) {
  for (const HttpReply& reply :
       {tokenize(request, model), detokenize(request, model), count_chat_tokens(request, model)}) {
    require(reply.status == 200 || reply.status == 400 || reply.status == 404, "status");
    require(fathom::parse_json(reply.body, {.max_bytes = 64 << 20}, "reply").ok(), "no JSON");
  }
}

void fuzz_messages(const HttpRequest& request, const ServedModel& model) {
  static const fathom::serve::ThinkingSigner signer("key");
  const auto first = parse_messages_request(request, model, "digest", signer);
  const auto second = parse_messages_request(fathom::serve::post_of(printed(request.body)), model,
                                             "digest", signer);
  require(first.index() == second.index(), "another verdict after printing");
  const HttpReply counted = count_message_tokens(request, model, signer, "req");
  if (const auto* error = std::get_if<ApiError>(&first)) return check_error(*error);
  const AnswerSpec& spec = std::get<fathom::serve::MessagesRequest>(first).answer;
  check_spec(spec, model);
  check_same(spec, std::get<fathom::serve::MessagesRequest>(second).answer);
  require(counted.body == fathom::str_cat("{\"input_tokens\":", spec.request.prompt.size(), "}"),
          "another count");
}

void fuzz_responses(const HttpRequest& request, const ServedModel& model) {
  const auto first = parse_responses_request(request, model, "digest");
  const auto second =
      parse_responses_request(fathom::serve::post_of(printed(request.body)), model, "digest");
  require(first.index() == second.index(), "another verdict after printing");
  const HttpReply counted = count_response_tokens(request, model);
  if (const auto* error = std::get_if<ApiError>(&first)) return check_error(*error);
  const AnswerSpec& spec = std::get<fathom::serve::ResponsesRequest>(first).answer;
  check_spec(spec, model);
  check_same(spec, std::get<fathom::serve::ResponsesRequest>(second).answer);
  require(counted.body == fathom::str_cat("{\"object\":\"response.input_tokens\",\"input_tokens\":",
                                          spec.request.prompt.size(), "}"),
          "another count");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static TestServer* const server = new TestServer;  // lives as long as the process
  if (size == 0 || size > 100'000) return 0;
  server->grammars.specs.clear();
  ServedModel model = server->model;
  const auto formats = fathom::chat_formats();
  model.chat_format = formats[(data[0] >> 2) % formats.size()];
  model.recipe_defaults = (data[0] & 32) != 0;
  model.strict_api = (data[0] & 64) != 0;
  if ((data[0] & 128) != 0) model.grammars = nullptr;
  const HttpRequest request =
      fathom::serve::post_of(std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  switch (data[0] % 4) {
    case 0:
    case 1:
      fuzz_chat(request, model);
      break;
    case 2:
      fuzz_completion(request, model);
      break;
    default:
      fuzz_small(request, model);
      fuzz_messages(request, model);
      fuzz_responses(request, model);
  }
  return 0;
}
