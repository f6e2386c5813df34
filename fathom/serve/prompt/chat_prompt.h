// From a chat request, whatever its protocol, to what is computed: chat completions, messages and
// responses read their fields into a ChatAsk, and the rest is the same for all.
//
//   body --protocol--> ChatAsk --make_chat_prompt--> ids, how the answer is cut, tools
//                              --make_chat_answer--> AnswerSpec: with limits, salt and grammar
//
// Everything here is pure, thread-safe and meant for a worker. Errors are Statuses in the form that
// api_error() reads: "code: field: text".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/serve/answer/answer_run.h"
#include "fathom/serve/prompt/answer_shape.h"
#include "fathom/serve/prompt/thinking.h"
#include "fathom/serve/served_model.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom::serve {

// Messages, parts and tools are limited by chat_json.h.
inline constexpr int64_t kMaxPrompts = 64;
inline constexpr int64_t kMaxChoices = 16;
inline constexpr int64_t kMaxIdBytes = 256;  ///< user, salts, ids, each value of metadata
inline constexpr int64_t kMaxDefaultTokens = 32'768;
inline constexpr int64_t kMaxPromptLogprobs = 1'048'576;  ///< that a reply holds of its prompts

/// What decides which requests share a prefix cache. All three joined are the salt.
struct CacheScope {
  std::string key_digest;  ///< of the API key; empty with --shared-prefix-cache
  std::string cache_salt;
  std::string prompt_cache_key;
};

/// One text of the three, such that different ones never meet; empty if all are.
std::string salt_of(const CacheScope& scope);

/// What becomes of an answer that is allowed more tokens than the context has left.
enum class OverContext {
  kRefuse,
  kEndWithContext,  ///< it gets what is left; ChoiceEnd::context_full says so
};

/// What a protocol has read.
struct ChatAsk {
  ChatConversation conversation;  ///< with its tools; `response_format` is what the prompt says
  ThinkingAsk thinking;
  GenerationPrompt generation_prompt = GenerationPrompt::kAdd;
  ToolUse tool_use;
  std::optional<ContentShape> shape;
  SamplingParams sampling;  ///< chat_sampling() changed by the request; max_tokens may be absent
  std::string max_tokens_field = "max_tokens";  ///< its name in messages
  OverContext over_context = OverContext::kRefuse;
  int num_choices = 1;
  int prompt_logprobs = -1;
  CacheScope scope;
};

struct ChatPrompt {
  std::vector<int32_t> tokens;
  AnswerGrammar answer;  ///< how the answer is cut into parts
  /// The model is told of, those of single messages too; none with tool_choice none.
  std::vector<ToolDefinition> tools;
  ChatOptions options;  ///< as resolved
};

/// The defaults of a chat request: the server's, and with recipe_defaults top_p 0.95.
SamplingParams chat_sampling(const ServedModel& model);

/// The prompt alone: for render and counting routes too. Errors: Unsupported where the model has no
/// chat format; what the format cannot express; tools, of single messages too, beyond the limits of
/// their number, names and schemas.
Result<ChatPrompt> make_chat_prompt(const ServedModel& model, const ChatAsk& ask);

/// Everything. Errors: those of make_chat_prompt and compile_answer, and
/// `context_length_exceeded`.
Result<AnswerSpec> make_chat_answer(const ServedModel& model, ChatAsk ask);

/// Sets max_tokens where it is absent (what the context leaves, at most `otherwise`), lowers it
/// where that is asked for, and checks it.
/// Errors: InvalidArgument `context_length_exceeded`; min_tokens above max_tokens.
Status limit_tokens(const ServedModel& model,
                    int64_t prompt_tokens,
                    int64_t otherwise,
                    std::string_view field,
                    SamplingParams& sampling,
                    OverContext over_context = OverContext::kRefuse);

/// Checks how many log-probabilities a reply holds of its prompts, of which each place has its
/// token and `top` others: top + 1 for each of `places`, in each of `num_choices`. Errors:
/// InvalidArgument naming `field`, which asked for them.
Status limit_prompt_logprobs(int64_t places,
                             int top,
                             int num_choices,
                             std::string_view field = "prompt_logprobs");

}  // namespace fathom::serve
