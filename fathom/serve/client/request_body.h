// Bodies of the routes that generate text, for a client.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fathom/serve/client/answer_reader.h"
#include "fathom/text/json.h"

namespace fathom::serve {

/// What is asked. One of ids, text and messages is there; chat routes make a user's message of
/// text.
struct TextRequest {
  std::string model;
  std::vector<int32_t> ids{};  ///< completions only
  std::string text{};
  std::vector<Json> messages{};  ///< in the shape of chat completions
  Json tools{};                  ///< a list, or null
  int64_t max_tokens = 0;        ///< 0: the server's
  bool ignore_eos = false;
  Json extra{};  ///< an object whose members are added, or null: "temperature", ...
};

/// Asks for a stream with the usage at its end. A member of `extra` takes the place of one that
/// would be written by itself.
std::string request_body(TextRoute route, const TextRequest& request);

/// {"role": role, "content": content}.
Json chat_message(std::string_view role, std::string content);

/// The assistant's turn as it is sent back, with its reasoning and its calls. Calls whose arguments
/// are no JSON, as in an answer that was cut, are left out.
Json assistant_message(const ReceivedAnswer& answer);

/// The calls that assistant_message keeps.
std::vector<ReceivedToolCall> whole_tool_calls(const ReceivedAnswer& answer);

}  // namespace fathom::serve
