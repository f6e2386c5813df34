#include "cli/engine/completion_json.h"

#include <charconv>

#include "cli/engine/text_engine.h"
#include "fathom/base/check.h"

namespace fathom::cli {

namespace {

// 0.8f as 0.8, not as 0.800000011920929.
double as_written(float value) {
  const std::string text = str_cat(value);
  double out = value;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

}  // namespace

std::string completion_json(const CompletionFacts& facts, JsonStyle style) {
  FATHOM_CHECK(facts.params.seed.has_value(), "a record without its seed cannot be repeated");
  const Completion& answer = facts.answer;
  JsonWriter out(style);
  out.begin_object().key("schema").string("fathom.run/1").key("model").string(facts.model);
  if (facts.id) out.key("id").string(*facts.id);
  if (facts.prompt) out.key("prompt").string(*facts.prompt);
  out.key("text").string(answer.text).key("tokens").begin_array();
  for (const int32_t id : answer.tokens)
    out.integer(id);
  out.end_array().key("finish_reason").string(finish_reason_name(answer.finish));
  out.key("prompt_tokens").integer(answer.prompt_tokens);
  out.key("completion_tokens").integer(static_cast<int64_t>(answer.tokens.size()));
  out.key("seed").unsigned_integer(*facts.params.seed);
  out.key("temperature").number(as_written(facts.params.temperature));
  out.key("first_token_s").number(answer.first_token_s).key("total_s").number(answer.total_s);
  out.key("tokens_per_s").number(tokens_per_second(answer)).end_object();
  return out.take();
}

}  // namespace fathom::cli
