#include "fathom/serve/client/answer_reader.h"

#include <array>
#include <initializer_list>

#include "fathom/base/str_cat.h"

namespace fathom::serve {
namespace {

constexpr std::array<std::string_view, 3> kPaths = {"/v1/completions", "/v1/chat/completions",
                                                    "/v1/messages"};

using Kind = AnswerPiece::Kind;

// The text of a member; empty if it is absent, null or no text.
std::string_view text_of(const Json& object, std::string_view name) {
  const Json* found = object.find(name);
  return found != nullptr && found->is_string() ? std::string_view(found->as_string()) : "";
}

// The integer below these names, one within the other.
void read_count(const Json& object,
                std::initializer_list<std::string_view> path,
                std::optional<int64_t>& to) {
  const Json* at = &object;
  for (const std::string_view name : path) {
    at = at->find(name);
    if (at == nullptr) return;
  }
  if (at->is_int()) to = at->as_int();
}

SentError read_error(const Json& error) {
  SentError out;
  for (const std::string_view name : {"code", "type"}) {
    const Json* found = error.find(name);
    if (out.code.empty() && found != nullptr && found->is_string()) out.code = found->as_string();
    if (out.code.empty() && found != nullptr && found->is_int())
      out.code = str_cat(found->as_int());
  }
  out.message = text_of(error, "message");
  return out;
}

}  // namespace

std::string_view text_route_path(TextRoute route) {
  return kPaths[static_cast<size_t>(route)];
}

Result<TextRoute> parse_text_route(std::string_view path) {
  for (size_t i = 0; i < kPaths.size(); ++i) {
    if (kPaths[i] == path) return static_cast<TextRoute>(i);
  }
  return invalid_argument(str_cat("--endpoint is '", path, "', expected ", kPaths[0], ", ",
                                  kPaths[1], " or ", kPaths[2]));
}

Result<AnswerPiece> AnswerReader::read(const SseEvent& event) {
  if (event.data == "[DONE]") {
    ended_ = true;
    return AnswerPiece{};
  }
  FATHOM_ASSIGN(const Json json, parse_json(event.data, {}, "an event of the stream"));
  if (const Json* error = json.find("error"); error != nullptr && !error->is_null()) {
    return sent_error(*error);
  }
  read_counts(json);
  if (route_ == TextRoute::kMessages) return read_block(json);
  const Json* choices = json.find("choices");
  if (choices == nullptr || !choices->is_array() || choices->items().empty()) return AnswerPiece{};
  return read_choice(choices->items().front());
}

AnswerPiece AnswerReader::read_choice(const Json& choice) {
  AnswerPiece piece;
  bool has_calls = false;
  bool names_role = false;
  if (route_ == TextRoute::kCompletions) {
    piece.content = text_of(choice, "text");
  } else if (const Json* delta = choice.find("delta"); delta != nullptr) {
    piece.content = text_of(*delta, "content");
    piece.reasoning = text_of(*delta, "reasoning_content");
    if (piece.reasoning.empty()) piece.reasoning = text_of(*delta, "reasoning");
    names_role = !text_of(*delta, "role").empty();
    const Json* calls = delta->find("tool_calls");
    has_calls = calls != nullptr && calls->is_array() && !calls->items().empty();
    if (has_calls) read_tool_calls(*calls);
  }
  const std::string_view finish = text_of(choice, "finish_reason");
  if (!finish.empty()) answer_.finish_reason = finish;
  answer_.content += piece.content;
  answer_.reasoning += piece.reasoning;
  const bool bare = piece.content.empty() && piece.reasoning.empty() && !has_calls;
  piece.kind = Kind::kTokens;
  if (bare && !finish.empty()) {
    piece.kind = Kind::kClosing;
  } else if (bare && names_role) {
    piece.kind = Kind::kOpening;
  }
  return piece;
}

void AnswerReader::read_tool_calls(const Json& calls) {
  constexpr size_t kMostCalls = 1024;
  for (const Json& call : calls.items()) {
    size_t index = answer_.tool_calls.empty() ? 0 : answer_.tool_calls.size() - 1;
    if (const Json* given = call.find("index"); given != nullptr && given->is_int()) {
      index = static_cast<size_t>(given->as_int());
    }
    if (index >= kMostCalls) continue;
    if (index >= answer_.tool_calls.size()) answer_.tool_calls.resize(index + 1);
    ReceivedToolCall& to = answer_.tool_calls[index];
    if (const std::string_view id = text_of(call, "id"); !id.empty()) to.id = id;
    const Json* function = call.find("function");
    if (function == nullptr) continue;
    to.name += text_of(*function, "name");
    to.arguments += text_of(*function, "arguments");
  }
}

AnswerPiece AnswerReader::read_block(const Json& event) {
  AnswerPiece piece;
  const std::string_view type = text_of(event, "type");
  if (type == "message_start") piece.kind = Kind::kOpening;
  if (type == "message_stop") ended_ = true;
  if (type == "content_block_start") {
    const Json* block = event.find("content_block");
    if (block == nullptr || text_of(*block, "type") != "tool_use") return piece;
    answer_.tool_calls.push_back({.id = std::string(text_of(*block, "id")),
                                  .name = std::string(text_of(*block, "name")),
                                  .arguments = {}});
  }
  const Json* delta = event.find("delta");
  if (delta == nullptr) return piece;
  if (type == "content_block_delta") {
    piece.content = text_of(*delta, "text");
    piece.reasoning = text_of(*delta, "thinking");
    const std::string_view arguments = text_of(*delta, "partial_json");
    if (!arguments.empty() && !answer_.tool_calls.empty()) {
      answer_.tool_calls.back().arguments += arguments;
    }
    answer_.content += piece.content;
    answer_.reasoning += piece.reasoning;
    const bool bare = piece.content.empty() && piece.reasoning.empty() && arguments.empty();
    if (!bare) piece.kind = Kind::kTokens;
  } else if (type == "message_delta") {
    answer_.finish_reason = text_of(*delta, "stop_reason");
    piece.kind = Kind::kClosing;
  }
  return piece;
}

void AnswerReader::read_counts(const Json& event) {
  CountedTokens& counted = answer_.counted;
  if (const Json* timings = event.find("timings"); timings != nullptr) {
    read_count(*timings, {"draft_n"}, counted.drafted);
    read_count(*timings, {"draft_accepted_n"}, counted.accepted);
  }
  const Json* usage = event.find("usage");
  if (const Json* message = event.find("message"); usage == nullptr && message != nullptr) {
    usage = message->find("usage");
  }
  if (usage == nullptr || !usage->is_object()) return;
  if (route_ == TextRoute::kMessages) {
    // input_tokens are those that were neither read from a cache nor written to one.
    std::optional<int64_t> fresh, written;
    read_count(*usage, {"input_tokens"}, fresh);
    read_count(*usage, {"cache_creation_input_tokens"}, written);
    read_count(*usage, {"cache_read_input_tokens"}, counted.cached);
    read_count(*usage, {"output_tokens"}, counted.completion);
    if (fresh) counted.prompt = *fresh + written.value_or(0) + counted.cached.value_or(0);
    return;
  }
  read_count(*usage, {"prompt_tokens"}, counted.prompt);
  read_count(*usage, {"completion_tokens"}, counted.completion);
  read_count(*usage, {"prompt_cache_hit_tokens"}, counted.cached);
  read_count(*usage, {"prompt_tokens_details", "cached_tokens"}, counted.cached);
  read_count(*usage, {"completion_tokens_details", "reasoning_tokens"}, counted.reasoning);
  read_count(*usage, {"completion_tokens_details", "accepted_prediction_tokens"}, counted.accepted);
}

Status AnswerReader::sent_error(const Json& error) {
  const SentError sent = read_error(error);
  error_code_ = sent.code.empty() ? "error" : sent.code;
  return unavailable(str_cat("the server ended the stream: ", error_code_, ": ", sent.message));
}

SentError read_error_body(std::string_view body) {
  constexpr size_t kMostText = 300;
  const Result<Json> json = parse_json(body, {}, "the error");
  if (json.ok()) {
    const Json* error = json->find("error");
    if (error != nullptr && error->is_string()) return {.code = {}, .message = error->as_string()};
    SentError out = read_error(error != nullptr ? *error : *json);
    if (!out.message.empty()) return out;
  }
  return {.code = {}, .message = std::string(body.substr(0, kMostText))};
}

}  // namespace fathom::serve
