// The body of POST /v1/responses and /v1/responses/input_tokens, read. Nothing is stored: a
// request carries its whole conversation.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/answer/answer_run.h"
#include "fathom/serve/openai/request_fields.h"
#include "fathom/serve/prompt/chat_prompt.h"

namespace fathom::serve {

/// How a response is answered.
struct ResponsesStyle {
  std::string id;     ///< "resp_..."
  std::string model;  ///< the name that the request used
  int64_t created_s = 0;
  bool stream = false;
  bool seal_reasoning = false;  ///< reasoning items have encrypted_content (sealed_reasoning.h)
  std::set<std::string> custom_tools{};  ///< names whose calls are custom_tool_call items
  ReplayStore* replay = nullptr;         ///< where the calls of the answer are kept
  Json echo{};                           ///< the members of a response that repeat the request
  /// Makes an id with a prefix ("rs_", "msg_", "fc_", "ctc_", "call_"); empty: unguessable ones.
  std::function<std::string(std::string_view prefix)> new_id{};
};

/// What the fields say; nothing is tokenised yet.
struct ResponsesFields {
  ChatAsk ask;
  ResponsesStyle style;
  std::vector<std::string> places;  ///< of the conversation's messages in the body
};

struct ResponsesRequest {
  AnswerSpec answer;
  ResponsesStyle style;
};

/// Reads the fields of a body. Pure.
Parsed<ResponsesFields> read_responses(const Json& body,
                                       const ServedModel& model,
                                       std::string_view key_digest);

/// The whole way from a request to what is computed; for a worker.
Parsed<ResponsesRequest> parse_responses_request(const HttpRequest& request,
                                                 const ServedModel& model,
                                                 std::string_view key_digest);

/// POST /v1/responses/input_tokens: {"object":"response.input_tokens","input_tokens":N}. For a
/// worker.
HttpReply count_response_tokens(const HttpRequest& request, const ServedModel& model);

}  // namespace fathom::serve
