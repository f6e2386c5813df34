#include "fathom/serve/openai/reply_parts.h"

#include <cmath>

namespace fathom::serve {
namespace {

void write_token(JsonWriter& w, int32_t token, float logprob, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(token);
  w.key("token").string(bytes).key("logprob").number(printable_logprob(logprob));
  w.key("bytes").begin_array();
  for (const char c : bytes)
    w.integer(static_cast<unsigned char>(c));
  w.end_array();
}

void write_ranked(JsonWriter& w,
                  const TokenLogprob& entry,
                  int32_t rank,
                  const Tokenizer& tokenizer) {
  w.key(str_cat(entry.token)).begin_object();
  w.key("logprob").number(printable_logprob(entry.logprob)).key("rank").integer(rank);
  w.key("decoded_token").string(tokenizer.token_bytes(entry.token)).end_object();
}

double per_second(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

}  // namespace

void write_reply_head(JsonWriter& w, const ReplyStyle& style, std::string_view object) {
  w.key("id").string(style.id).key("object").string(object);
  w.key("created").integer(style.created_s).key("model").string(style.model);
  w.key("system_fingerprint").string(style.system_fingerprint);
}

void write_usage(JsonWriter& w, const AnswerUsage& usage) {
  const int64_t missed = usage.prompt_tokens - usage.cached_tokens;
  w.begin_object();
  w.key("prompt_tokens").integer(usage.prompt_tokens);
  w.key("completion_tokens").integer(usage.completion_tokens);
  w.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
  w.key("prompt_tokens_details").begin_object();
  w.key("cached_tokens").integer(usage.cached_tokens);
  w.key("cache_write_tokens").integer(missed).end_object();
  w.key("completion_tokens_details").begin_object();
  w.key("reasoning_tokens").integer(usage.reasoning_tokens);
  w.key("accepted_prediction_tokens").integer(usage.accepted_draft_tokens).end_object();
  w.key("prompt_cache_hit_tokens").integer(usage.cached_tokens);
  w.key("prompt_cache_miss_tokens").integer(missed);
  w.end_object();
}

void write_running_usage(JsonWriter& w, int64_t prompt_tokens, int64_t completion_tokens) {
  w.begin_object();
  w.key("prompt_tokens").integer(prompt_tokens);
  w.key("completion_tokens").integer(completion_tokens);
  w.key("total_tokens").integer(prompt_tokens + completion_tokens);
  w.end_object();
}

void write_timings(JsonWriter& w, const AnswerUsage& usage, const AnswerTimings& timings) {
  const int64_t computed = usage.prompt_tokens - usage.cached_tokens;
  w.begin_object();
  w.key("queue_ms").number(timings.queue_s * 1e3);
  w.key("prompt_ms").number(timings.prompt_s * 1e3);
  w.key("prompt_per_second").number(per_second(computed, timings.prompt_s));
  w.key("predicted_ms").number(timings.predicted_s * 1e3);
  w.key("predicted_per_second").number(per_second(usage.completion_tokens, timings.predicted_s));
  w.key("cache_n").integer(usage.cached_tokens);
  w.key("draft_n").integer(usage.drafted_tokens);
  w.key("draft_accepted_n").integer(usage.accepted_draft_tokens);
  w.end_object();
}

void write_chat_logprobs(JsonWriter& w,
                         std::span<const TokenNews> tokens,
                         const Tokenizer& tokenizer) {
  w.begin_object().key("content").begin_array();
  for (const TokenNews& news : tokens) {
    w.begin_object();
    write_token(w, news.token, news.logprob, tokenizer);
    w.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : news.top_logprobs) {
      w.begin_object();
      write_token(w, top.token, top.logprob, tokenizer);
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array().key("refusal").null().end_object();
}

void write_prompt_logprobs(JsonWriter& w,
                           const std::vector<PromptLogprobs>& prompt,
                           const Tokenizer& tokenizer) {
  w.begin_array().null();
  for (const PromptLogprobs& place : prompt) {
    w.begin_object();
    write_ranked(w, place.token, place.rank, tokenizer);
    for (size_t i = 0; i < place.top.size(); ++i) {
      if (place.top[i].token == place.token.token) continue;
      write_ranked(w, place.top[i], static_cast<int32_t>(i + 1), tokenizer);
    }
    w.end_object();
  }
  w.end_array();
}

double printable_logprob(float logprob) {
  constexpr double kLeast = -9999.0;
  return std::isfinite(logprob) ? std::max(kLeast, static_cast<double>(logprob)) : kLeast;
}

std::string_view finish_word(const ChoiceEnd& end) {
  if (end.finish == FinishReason::kLength) return "length";
  return end.called_tools ? "tool_calls" : "stop";
}

}  // namespace fathom::serve
