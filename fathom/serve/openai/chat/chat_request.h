// The body of POST /v1/chat/completions, read.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "fathom/serve/answer/answer_run.h"
#include "fathom/serve/openai/request_fields.h"
#include "fathom/serve/prompt/chat_prompt.h"

namespace fathom::serve {

/// How a chat is answered.
struct ChatStyle {
  ReplyStyle reply;
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  int num_choices = 1;
  std::string echo;               ///< stands before the content of every choice
  ReplayStore* replay = nullptr;  ///< where the calls of the answer are kept
  /// Makes the id of a call; empty: "call_" and 24 digits.
  std::function<std::string()> new_call_id;
};

/// What the fields say; nothing is tokenised yet.
struct ChatFields {
  ChatAsk ask;
  ChatStyle style;
};

struct ChatRequest {
  AnswerSpec answer;
  ChatStyle style;
};

/// Reads the fields of a body. Pure. `besides`: what else its route knows and reads itself, which a
/// strict server does not refuse.
Parsed<ChatFields> read_chat(const Json& body,
                             const ServedModel& model,
                             std::string_view key_digest,
                             std::span<const std::string_view> besides = {});

/// The whole way from a request to what is computed; for a worker. `key_digest` is of the API key,
/// empty where tenants share prefixes.
Parsed<ChatRequest> parse_chat_request(const HttpRequest& request,
                                       const ServedModel& model,
                                       std::string_view key_digest);

}  // namespace fathom::serve
