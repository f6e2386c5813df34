#include "fathom/serve/prompt/chat_prompt.h"

#include <algorithm>

#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

// What the official recipe of V4 has where a request is silent (serving.md, 4.8).
constexpr float kRecipeTopP = 0.95f;
constexpr int64_t kRecipeTokens = 8'192;
constexpr int64_t kRecipeThinkingTokens = 65'536;
constexpr int64_t kRecipeHighestEffortTokens = 131'072;

int64_t default_tokens(const ServedModel& model, const ChatPrompt& prompt) {
  if (!model.recipe_defaults) return kMaxDefaultTokens;
  if (!prompt.answer.starts_in_reasoning) return kRecipeTokens;
  return prompt.options.effort == ReasoningEffort::kMax ? kRecipeHighestEffortTokens
                                                        : kRecipeThinkingTokens;
}

// The tools of one list. `total` counts those of all lists so far.
Status check_tools(const std::vector<ToolDefinition>& tools,
                   const std::string& place,
                   size_t& total) {
  total += tools.size();
  if (total > kMaxChatTools) {
    return invalid_argument(
        str_cat(place, ": ", total, " entries, expected at most ", kMaxChatTools));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const ToolDefinition& tool = tools[i];
    if (const auto size = static_cast<int64_t>(tool.name.size()); size > kMaxIdBytes) {
      return invalid_argument(str_cat(place, "[", i, "].function.name: ", size,
                                      " bytes, expected at most ", kMaxIdBytes));
    }
    if (tool.parameters.is_null()) continue;
    FATHOM_TRY(check_schema(tool.parameters, str_cat(place, "[", i, "].function.parameters")));
  }
  return {};
}

// Those of the whole conversation, then those of single messages, with the same limits for all.
Result<std::vector<ToolDefinition>> all_tools(const ChatConversation& conversation) {
  size_t total = 0;
  FATHOM_TRY(check_tools(conversation.tools, "tools", total));
  std::vector<ToolDefinition> tools = conversation.tools;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const std::vector<ToolDefinition>& own = conversation.messages[i].tools;
    FATHOM_TRY(check_tools(own, str_cat("messages[", i, "].tools"), total));
    tools.insert(tools.end(), own.begin(), own.end());
  }
  return tools;
}

// A text that a grammar describes from its first character on cannot be gone on with.
Status check_shape(const ChatAsk& ask) {
  const auto& messages = ask.conversation.messages;
  if (!ask.shape || messages.empty()) return {};
  const ChatMessage& last = messages.back();
  if (last.end != TurnEnd::kContinue || last.content.empty()) return {};
  return unsupported(str_cat("unsupported_parameter: ", ask.shape->field,
                             ": not together with a message that is to be continued"));
}

}  // namespace

std::string salt_of(const CacheScope& scope) {
  if (scope.key_digest.empty() && scope.cache_salt.empty() && scope.prompt_cache_key.empty()) {
    return {};
  }
  std::string salt;
  for (const std::string* part : {&scope.key_digest, &scope.cache_salt, &scope.prompt_cache_key})
    str_append(salt, str_cat(part->size(), ":", *part));
  return salt;
}

SamplingParams chat_sampling(const ServedModel& model) {
  SamplingParams sampling = model.sampling;
  if (model.recipe_defaults && sampling.top_p == 1.0f) sampling.top_p = kRecipeTopP;
  return sampling;
}

Result<ChatPrompt> make_chat_prompt(const ServedModel& model, const ChatAsk& ask) {
  if (model.chat_format == nullptr) return unsupported(model.no_chat);
  ChatPrompt prompt;
  FATHOM_ASSIGN(prompt.tools, all_tools(ask.conversation));
  prompt.options = chat_options(model, ask.thinking);
  prompt.options.generation_prompt = ask.generation_prompt;

  const ChatConversation* conversation = &ask.conversation;
  ChatConversation without_tools;
  if (ask.tool_use.choice.kind == ToolChoice::Kind::kNone && !prompt.tools.empty()) {
    prompt.tools.clear();
    without_tools = *conversation;
    without_tools.tools.clear();
    for (ChatMessage& message : without_tools.messages)
      message.tools.clear();
    conversation = &without_tools;
  }
  FATHOM_ASSIGN(const PromptText text, model.chat_format->format(*conversation, prompt.options));
  prompt.tokens = text.encode(*model.tokenizer);
  prompt.answer = model.chat_format->answer_grammar_after(*conversation, prompt.options);
  return prompt;
}

Status limit_tokens(const ServedModel& model,
                    int64_t prompt_tokens,
                    int64_t otherwise,
                    std::string_view field,
                    SamplingParams& sampling,
                    OverContext over_context) {
  const int64_t rest = model.max_model_len - prompt_tokens;
  if (rest < 1) {
    return invalid_argument(str_cat("context_length_exceeded: prompt of ", prompt_tokens,
                                    " tokens leaves no room for an answer in max_model_len ",
                                    model.max_model_len));
  }
  if (!sampling.max_tokens) sampling.max_tokens = std::min(rest, otherwise);
  if (over_context == OverContext::kEndWithContext) {
    sampling.max_tokens = std::min(rest, *sampling.max_tokens);
  }
  if (*sampling.max_tokens > rest) {
    return invalid_argument(str_cat("context_length_exceeded: ", field, ": ", *sampling.max_tokens,
                                    " + prompt ", prompt_tokens, " tokens exceeds max_model_len ",
                                    model.max_model_len));
  }
  if (sampling.min_tokens > *sampling.max_tokens) {
    return invalid_argument(str_cat("min_tokens: found ", sampling.min_tokens,
                                    ", expected at most ", field, ", which is ",
                                    *sampling.max_tokens));
  }
  return {};
}

Status limit_prompt_logprobs(int64_t places, int top, int num_choices, std::string_view field) {
  const int64_t count = places * (top + 1) * num_choices;
  if (count <= kMaxPromptLogprobs) return {};
  return invalid_argument(str_cat(
      field, ": found ", top, ", for ", places, " tokens of prompts in ", num_choices,
      " choices these are ", count, " log-probabilities, expected at most ", kMaxPromptLogprobs));
}

Result<AnswerSpec> make_chat_answer(const ServedModel& model, ChatAsk ask) {
  FATHOM_TRY(check_shape(ask));
  FATHOM_ASSIGN(ChatPrompt prompt, make_chat_prompt(model, ask));
  FATHOM_TRY(limit_tokens(model, static_cast<int64_t>(prompt.tokens.size()),
                          default_tokens(model, prompt), ask.max_tokens_field, ask.sampling,
                          ask.over_context));
  // The reply has them once, whatever n is.
  FATHOM_TRY(limit_prompt_logprobs(static_cast<int64_t>(prompt.tokens.size()) - 1,
                                   ask.prompt_logprobs, 1));
  AnswerSpec spec;
  FATHOM_ASSIGN(spec.constraint,
                compile_answer(model, ask.shape, prompt.tools, ask.tool_use, prompt.answer));
  spec.request.prompt = std::move(prompt.tokens);
  spec.request.sampling = std::move(ask.sampling);
  spec.request.cache_salt = salt_of(ask.scope);
  spec.request.prompt_logprobs = ask.prompt_logprobs;
  spec.num_choices = ask.num_choices;
  spec.grammar = prompt.answer;
  spec.tools = std::move(prompt.tools);
  return spec;
}

}  // namespace fathom::serve
