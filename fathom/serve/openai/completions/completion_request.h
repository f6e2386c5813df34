// The body of POST /v1/completions, read: one or more prompts, each with n choices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/answer/answer_run.h"
#include "fathom/serve/openai/request_fields.h"

namespace fathom::serve {

/// A prompt as `echo` shows it.
struct EchoedPrompt {
  std::string text;
  std::vector<int32_t> tokens;  ///< of the request
  bool hidden_bos = false;      ///< the first of them is not in the text
};

struct CompletionStyle {
  ReplyStyle reply;
  int num_choices = 1;                ///< of each prompt
  int num_prompts = 1;                ///< choice i of prompt p has index p * num_choices + i
  int top_logprobs = 0;               ///< how many best ones a place shows
  std::vector<EchoedPrompt> prompts;  ///< with echo; else empty
};

struct CompletionRequest {
  std::vector<AnswerSpec> answers;  ///< one a prompt
  CompletionStyle style;
};

/// Reads `prompt`, `suffix` and `add_special_tokens`. A suffix needs the tokens for filling in the
/// middle. Errors are those of `fields`.
std::vector<EchoedPrompt> read_prompts(Fields& fields, const ServedModel& model);

/// The whole way from a request to what is computed; for a worker.
Parsed<CompletionRequest> parse_completion_request(const HttpRequest& request,
                                                   const ServedModel& model,
                                                   std::string_view key_digest);

}  // namespace fathom::serve
