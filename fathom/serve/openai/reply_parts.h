// What replies of chat completions and completions have in common: their style, as the request asks
// for it, and the blocks of usage, timings and log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/answer/reply_writer.h"
#include "fathom/serve/served_model.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::serve {

/// What a writer needs to know besides the answer.
struct ReplyStyle {
  std::string id;     ///< "chatcmpl-..."
  std::string model;  ///< the name that the request used
  std::string system_fingerprint;
  int64_t created_s = 0;  ///< Unix time
  const Tokenizer* tokenizer = nullptr;
  bool stream = false;
  bool include_usage = false;     ///< a last chunk with the usage
  bool continuous_usage = false;  ///< the usage so far in every chunk
  bool timings = false;
  bool logprobs = false;
  bool prompt_logprobs = false;
};

/// Writes id, object, created, model and system_fingerprint into an open object.
void write_reply_head(JsonWriter& w, const ReplyStyle& style, std::string_view object);

/// {"prompt_tokens":..., ...} with all details.
void write_usage(JsonWriter& w, const AnswerUsage& usage);

/// The counts alone, for chunks.
void write_running_usage(JsonWriter& w, int64_t prompt_tokens, int64_t completion_tokens);

void write_timings(JsonWriter& w, const AnswerUsage& usage, const AnswerTimings& timings);

/// {"content":[{"token","logprob","bytes","top_logprobs":[...]}],"refusal":null} of chat.
void write_chat_logprobs(JsonWriter& w,
                         std::span<const TokenNews> tokens,
                         const Tokenizer& tokenizer);

/// [null, {"ID":{"logprob","rank","decoded_token"}, ...}, ...]: for each token of the prompt.
void write_prompt_logprobs(JsonWriter& w,
                           const std::vector<PromptLogprobs>& prompt,
                           const Tokenizer& tokenizer);

/// A number that JSON has: -inf and NaN are -9999, as clients know it.
double printable_logprob(float logprob);

/// "stop", "length", "tool_calls".
std::string_view finish_word(const ChoiceEnd& end);

}  // namespace fathom::serve
