// Errors as clients of the APIs see them: one table of status, type and code, two shapes of body.
//
//   OpenAI      {"error":{"message":..,"type":..,"param":..|null,"code":..|null}}
//   Anthropic   {"type":"error","error":{"type":..,"message":..},"request_id":..}
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/runtime/request.h"
#include "fathom/serve/exchange.h"

namespace fathom::serve {

/// What went wrong with a request.
struct ApiError {
  int status = 400;       ///< of HTTP
  std::string code;       ///< "context_length_exceeded"; the row of the table it belongs to
  std::string message;    ///< names the field, the value and the limit
  std::string param;      ///< "messages[2].content"; empty: null
  int retry_after_s = 0;  ///< Retry-After; 0: none

  /// "invalid_request_error": by status.
  std::string_view type() const;

  /// The type of the Anthropic API: "overloaded_error".
  std::string_view anthropic_type() const;
};

/// 400 of a field: `message` should begin with its name.
ApiError bad_value(std::string param, std::string message, std::string code = "invalid_value");

/// A Status of the engine or of a parser. A message that begins with "code: " of the engine's
/// (context_length_exceeded, too_large_for_pool, queue_full) becomes that code; one that begins
/// with a path of a field ("messages[3].content ...") has it as param.
ApiError api_error(const Status& status);

/// An end that is an error: timeouts, numerical errors, faults. Ok ends have none (status 200).
ApiError api_error(FinishReason reason);

/// {"error":{...}}, for replies and for events within a stream.
std::string openai_error_json(const ApiError& error);

/// {"type":"error",...}.
std::string anthropic_error_json(const ApiError& error, std::string_view request_id);

HttpReply openai_error_reply(const ApiError& error);
HttpReply anthropic_error_reply(const ApiError& error, std::string_view request_id);

/// In the shape that clients of a path expect: Anthropic's below /v1/messages, else OpenAI's.
HttpReply error_reply(const ApiError& error, std::string_view path, std::string_view request_id);

}  // namespace fathom::serve
