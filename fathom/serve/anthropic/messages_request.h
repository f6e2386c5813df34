// The body of POST /v1/messages and /v1/messages/count_tokens, read.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/answer/answer_run.h"
#include "fathom/serve/anthropic/thinking_signer.h"
#include "fathom/serve/openai/request_fields.h"
#include "fathom/serve/prompt/chat_prompt.h"

namespace fathom::serve {

/// How a message is answered.
struct MessagesStyle {
  std::string id;     ///< "msg_..."
  std::string model;  ///< the name that the request used
  bool stream = false;
  ReplayStore* replay = nullptr;           ///< where the calls of the answer are kept
  const ThinkingSigner* signer = nullptr;  ///< outlives the answer
  /// Makes the id of a call; empty: "toolu_" and 24 digits.
  std::function<std::string()> new_call_id{};
};

/// What the fields say; nothing is tokenised yet.
struct MessagesFields {
  ChatAsk ask;
  MessagesStyle style;
  std::vector<std::string> places;  ///< of the conversation's messages in the body
};

struct MessagesRequest {
  AnswerSpec answer;
  MessagesStyle style;
};

/// Whether a body asks for an answer, and so must have max_tokens, or only to be counted.
enum class MessagesPurpose { kAnswer, kCount };

/// Reads the fields of a body. Pure. An answer that may be longer than the context has room for
/// ends with the context.
Parsed<MessagesFields> read_messages(const Json& body,
                                     const ServedModel& model,
                                     std::string_view key_digest,
                                     const ThinkingSigner& signer,
                                     MessagesPurpose purpose);

/// The whole way from a request to what is computed; for a worker.
Parsed<MessagesRequest> parse_messages_request(const HttpRequest& request,
                                               const ServedModel& model,
                                               std::string_view key_digest,
                                               const ThinkingSigner& signer);

/// POST /v1/messages/count_tokens: {"input_tokens":N}, the length of the prompt that the real route
/// would run. For a worker. `request_id` is for errors.
HttpReply count_message_tokens(const HttpRequest& request,
                               const ServedModel& model,
                               const ThinkingSigner& signer,
                               std::string_view request_id);

}  // namespace fathom::serve
