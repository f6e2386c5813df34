// What a protocol writes: an answer of one or more choices as it grows, to a client that streams or
// waits for the whole. Chat completions, completions, messages and responses have a writer each.
//
// Calls come on the event loop, in this order:
//   open()                        once or never, if the first event is long in coming
//   begin()                       once, with the first event of any choice
//   delta() ... finish()          for each choice, choices mixed
//   end()  or  fail()             once and last
// fail() may come first, and in place of everything else. Behind open() it is an event of the
// stream, where the answer streams, else a reply with a status of HTTP.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fathom/runtime/request.h"
#include "fathom/serve/api_error.h"
#include "fathom/serve/service/engine_service.h"
#include "fathom/tokenizer/answer/answer_parser.h"

namespace fathom::serve {

/// A token with what was asked for of its probability.
struct TokenNews {
  int32_t token = -1;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;
};

/// What one event adds to a choice.
struct ChoiceDelta {
  int choice = 0;
  AnswerDelta parts{};              ///< of an answer that is parsed; else its content is the text
  std::vector<TokenNews> tokens{};  ///< of this delta; empty unless logprobs were asked for
  int64_t completion_tokens = 0;    ///< of all choices so far
  /// In the first delta of a choice, if asked for: of each token of its prompt but the first. Where
  /// a request has several prompts, begin() has none.
  const std::vector<PromptLogprobs>* prompt_logprobs = nullptr;
};

/// How a choice ended.
struct ChoiceEnd {
  int choice = 0;
  FinishReason finish = FinishReason::kStop;  ///< kStop or kLength
  bool called_tools = false;                  ///< finish_reason is "tool_calls" then
  std::string stop_text{};                    ///< the stop string that was found; may be empty
  bool context_full = false;                  ///< kLength because the context ended
  /// Of an answer with calls: the ids as they were sampled (replay/call_tokens.h); else empty.
  std::vector<int32_t> call_tokens{};
};

struct AnswerUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;  ///< of all choices
  int64_t reasoning_tokens = 0;
  int64_t accepted_draft_tokens = 0;
  int64_t drafted_tokens = 0;
};

struct AnswerTimings {
  double queue_s = 0;
  double prompt_s = 0;
  double predicted_s = 0;
};

class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;

  /// Begins a stream of which nothing is known yet, so that its client and what is between see it
  /// live: in a long queue, or in a long prompt. Nothing for an answer that does not stream.
  virtual void open() = 0;

  /// `prompt_logprobs`: null unless asked for.
  virtual void begin(const AnswerUsage& so_far,
                     const std::vector<PromptLogprobs>* prompt_logprobs) = 0;
  virtual void delta(const ChoiceDelta& delta) = 0;
  virtual void finish(const ChoiceEnd& end) = 0;
  virtual void end(const AnswerUsage& usage, const AnswerTimings& timings) = 0;
  virtual void fail(const ApiError& error) = 0;
};

}  // namespace fathom::serve
