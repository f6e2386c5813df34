#include "fathom/runtime/sample/params.h"

#include <algorithm>

#include "fathom/text/utf8.h"

namespace fathom {
namespace {

template <class T>
Status out_of_range(std::string_view name, T value, std::string_view range) {
  return invalid_argument(str_cat(name, " is ", value, ", expected ", range));
}

// Written so that NaN fails.
Status check_closed(std::string_view name, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return out_of_range(name, value, str_cat(low, " to ", high));
}

Status check_half_open(std::string_view name, float value, float high) {
  if (value > 0.0f && value <= high) return {};
  return out_of_range(name, value, str_cat("above 0 and at most ", high));
}

Status check_count(std::string_view name, size_t count, int64_t limit) {
  if (static_cast<int64_t>(count) <= limit) return {};
  return out_of_range(str_cat("the number of entries of ", name), count,
                      str_cat("at most ", limit));
}

Status check_id(std::string_view name, size_t index, int32_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return out_of_range(str_cat(name, "[", index, "]"), id, str_cat("0 to ", vocab_size - 1));
}

Status check_bias(const SamplingParams& p, int64_t vocab_size) {
  FATHOM_TRY(check_count("logit_bias", p.logit_bias.size(), kMaxLogitBias));
  std::vector<int32_t> ids;
  for (size_t i = 0; i < p.logit_bias.size(); ++i) {
    const auto [id, value] = p.logit_bias[i];
    FATHOM_TRY(check_id("logit_bias", i, id, vocab_size));
    FATHOM_TRY(check_closed(str_cat("logit_bias of token ", id), value, -100.0f, 100.0f));
    ids.push_back(id);
  }
  std::ranges::sort(ids);
  if (const auto twice = std::ranges::adjacent_find(ids); twice != ids.end()) {
    return invalid_argument(str_cat("logit_bias names token ", *twice, " twice"));
  }
  return {};
}

Status check_stop(const SamplingParams& p, int64_t vocab_size) {
  FATHOM_TRY(check_count("stop", p.stop.size(), kMaxStopStrings));
  for (size_t i = 0; i < p.stop.size(); ++i) {
    const std::string& text = p.stop[i];
    if (text.empty() || static_cast<int64_t>(text.size()) > kMaxStopStringBytes) {
      return out_of_range(str_cat("the length of stop[", i, "]"), text.size(),
                          str_cat("1 to ", kMaxStopStringBytes, " bytes"));
    }
    if (!is_valid_utf8(text)) return invalid_argument(str_cat("stop[", i, "] is not valid UTF-8"));
  }
  FATHOM_TRY(check_count("stop_token_ids", p.stop_token_ids.size(), kMaxStopIds));
  for (size_t i = 0; i < p.stop_token_ids.size(); ++i) {
    FATHOM_TRY(check_id("stop_token_ids", i, p.stop_token_ids[i], vocab_size));
  }
  return {};
}

}  // namespace

Status validate(const SamplingParams& p, int64_t vocab_size) {
  FATHOM_TRY(check_closed("temperature", p.temperature, 0.0f, 2.0f));
  FATHOM_TRY(check_half_open("top_p", p.top_p, 1.0f));
  FATHOM_TRY(check_closed("min_p", p.min_p, 0.0f, 1.0f));
  if (p.top_k < -1 || p.top_k > vocab_size) {
    return out_of_range("top_k", p.top_k, str_cat("-1 to ", vocab_size));
  }
  FATHOM_TRY(check_closed("presence_penalty", p.presence_penalty, -2.0f, 2.0f));
  FATHOM_TRY(check_closed("frequency_penalty", p.frequency_penalty, -2.0f, 2.0f));
  FATHOM_TRY(check_half_open("repetition_penalty", p.repetition_penalty, 10.0f));
  if (p.top_logprobs < -1 || p.top_logprobs > kMaxTopLogprobs) {
    return out_of_range("logprobs", p.top_logprobs, str_cat("0 to ", kMaxTopLogprobs));
  }
  if (p.max_tokens && *p.max_tokens < 1) {
    return out_of_range("max_tokens", *p.max_tokens, "at least 1");
  }
  if (p.min_tokens < 0 || (p.max_tokens && p.min_tokens > *p.max_tokens)) {
    return out_of_range("min_tokens", p.min_tokens, "0 to max_tokens");
  }
  FATHOM_TRY(check_bias(p, vocab_size));
  return check_stop(p, vocab_size);
}

}  // namespace fathom
