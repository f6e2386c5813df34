#include "fathom/serve/api_error.h"

#include <array>

#include "fathom/base/hint.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

struct TypeRow {
  int status;
  std::string_view openai;
  std::string_view anthropic;
};

constexpr TypeRow kTypes[] = {
    {400, "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "invalid_request_error", "not_found_error"},
    {413, "invalid_request_error", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_error"},
    {500, "server_error", "api_error"},
    {503, "service_unavailable_error", "overloaded_error"},
    {504, "timeout_error", "timeout_error"},
};

const TypeRow& row_of(int status) {
  for (const TypeRow& row : kTypes) {
    if (row.status == status) return row;
  }
  return status >= 500 ? kTypes[6] : kTypes[0];
}

// Codes that messages of the engine begin with, and their status.
constexpr std::pair<std::string_view, int> kCodes[] = {
    {"context_length_exceeded", 400},
    {"too_large_for_pool", 400},
    {"invalid_schema", 400},
    {"grammar_too_complex", 400},
    {"unsupported_parameter", 400},
    {"queue_full", 429},
    {"rate_limit_exceeded", 429},
    {"draining", 503},
    {"loading", 503},
    {"overloaded", 503},
};

bool is_path_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '[' || c == ']';
}

// "messages[3].content" of "messages[3].content: found ...": a name of a field at the beginning,
// with a bracket or a point in it or a colon or " is" behind it.
std::string path_at_start(std::string_view message) {
  size_t end = 0;
  while (end < message.size() && is_path_char(message[end]))
    ++end;
  const std::string_view path = message.substr(0, end);
  const std::string_view rest = message.substr(end);
  const bool named = path.find('[') != std::string_view::npos || rest.starts_with(": ") ||
                     rest.starts_with(" is ");
  return named && !path.empty() ? std::string(path) : std::string();
}

int status_of(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
    case StatusCode::kCorrupt:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kOverloaded:
      return 429;
    case StatusCode::kUnavailable:
    case StatusCode::kOutOfMemory:
      return 503;
    case StatusCode::kCancelled:
      return 503;
    default:
      return 500;
  }
}

std::string_view code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kCorrupt:
      return "invalid_value";
    case StatusCode::kUnsupported:
      return "unsupported_parameter";
    case StatusCode::kNotFound:
      return "model_not_found";
    case StatusCode::kOverloaded:
      return "queue_full";
    case StatusCode::kUnavailable:
    case StatusCode::kOutOfMemory:
      return "overloaded";
    case StatusCode::kNumerical:
      return "numerical_error";
    case StatusCode::kDeviceLost:
      return "engine_fault";
    default:
      return "internal_error";
  }
}

constexpr int kRetryAfterS = 1;

void write_error(JsonWriter& w, const ApiError& e) {
  w.begin_object();
  w.key("message").string(e.message);
  w.key("type").string(e.type());
  w.key("param");
  e.param.empty() ? w.null() : w.string(e.param);
  w.key("code");
  e.code.empty() ? w.null() : w.string(e.code);
  w.end_object();
}

HttpReply reply_of(const ApiError& e, std::string body) {
  HttpReply reply{.status = e.status,
                  .content_type = "application/json",
                  .headers = {},
                  .body = std::move(body)};
  if (e.retry_after_s > 0) reply.headers.emplace_back("Retry-After", str_cat(e.retry_after_s));
  return reply;
}

}  // namespace

std::string_view ApiError::type() const {
  return row_of(status).openai;
}

std::string_view ApiError::anthropic_type() const {
  return row_of(status).anthropic;
}

ApiError bad_value(std::string param, std::string message, std::string code) {
  return {.status = 400,
          .code = std::move(code),
          .message = std::move(message),
          .param = std::move(param)};
}

ApiError api_error(const Status& status) {
  ApiError e{.status = status_of(status.code()),
             .code = std::string(code_of(status.code())),
             .message = in_one_line(status.message()),
             .param = {}};
  for (const auto& [code, http] : kCodes) {
    if (!e.message.starts_with(code) ||
        !std::string_view(e.message).substr(code.size()).starts_with(": "))
      continue;
    e.code = code;
    e.status = http;
    e.message.erase(0, code.size() + 2);
    break;
  }
  if (e.status == 400) e.param = path_at_start(e.message);
  if (e.status == 429 || e.status == 503) e.retry_after_s = kRetryAfterS;
  // What a fault says names internals: clients get the fact, the log has the rest.
  if (e.status == 500) e.message = "the server had an internal error; its log says more";
  return e;
}

ApiError api_error(FinishReason reason) {
  switch (reason) {
    case FinishReason::kQueueTimeout:
      return {.status = 503,
              .code = "queue_timeout",
              .message = "the request waited too long in the queue",
              .param = {},
              .retry_after_s = kRetryAfterS};
    case FinishReason::kRequestTimeout:
      return {.status = 504,
              .code = "request_timeout",
              .message = "the request took longer than the server allows (--request-timeout)",
              .param = {}};
    case FinishReason::kNumericalError:
      return {.status = 500,
              .code = "numerical_error",
              .message = "the model's logits were not finite; the request was ended",
              .param = {}};
    case FinishReason::kConstraintFault:
      return {.status = 500,
              .code = "constraint_fault",
              .message =
                  "the constraint of the answer contradicts itself, which is an error of the "
                  "server; the request was ended",
              .param = {}};
    case FinishReason::kEngineFault:
      return {.status = 500,
              .code = "engine_fault",
              .message = "the engine had a fault and goes down",
              .param = {}};
    case FinishReason::kAborted:
      return {.status = 503,
              .code = "draining",
              .message = "the server ended the request because it shuts down",
              .param = {},
              .retry_after_s = kRetryAfterS};
    case FinishReason::kNone:
    case FinishReason::kStop:
    case FinishReason::kLength:
      return {.status = 200, .code = {}, .message = {}, .param = {}};
  }
  return {.status = 500, .code = "internal_error", .message = {}, .param = {}};
}

std::string openai_error_json(const ApiError& error) {
  JsonWriter w;
  w.begin_object().key("error");
  write_error(w, error);
  w.end_object();
  return w.take();
}

std::string anthropic_error_json(const ApiError& error, std::string_view request_id) {
  JsonWriter w;
  w.begin_object().key("type").string("error").key("error").begin_object();
  w.key("type").string(error.anthropic_type()).key("message").string(error.message).end_object();
  w.key("request_id").string(request_id).end_object();
  return w.take();
}

HttpReply openai_error_reply(const ApiError& error) {
  return reply_of(error, openai_error_json(error));
}

HttpReply anthropic_error_reply(const ApiError& error, std::string_view request_id) {
  return reply_of(error, anthropic_error_json(error, request_id));
}

HttpReply error_reply(const ApiError& error, std::string_view path, std::string_view request_id) {
  return path.starts_with("/v1/messages") ? anthropic_error_reply(error, request_id)
                                          : openai_error_reply(error);
}

}  // namespace fathom::serve
