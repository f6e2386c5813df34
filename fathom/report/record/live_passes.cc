#include "fathom/report/record/live_passes.h"

#include <algorithm>
#include <cmath>

namespace fathom {

std::vector<PromptPass> prompt_passes(const LiveOptions& options) {
  std::vector<PromptPass> out;
  const std::span<const int32_t> tokens(options.prompt);
  const auto most = static_cast<size_t>(options.chunk);
  for (size_t at = 0; at < tokens.size(); at += most) {
    const auto part = tokens.subspan(at).first(std::min(tokens.size() - at, most));
    out.push_back({.phase = at == 0 ? kPrefillPhase : kChunkedPhase,
                   .tokens = part,
                   .last = at + part.size() == tokens.size()});
  }
  return out;
}

bool drafts_after_prompt(const Model& model, const LiveOptions& options) {
  return model.has_draft() && static_cast<int64_t>(options.prompt.size()) <= options.chunk;
}

std::vector<int32_t> tokens_after_prompt(const LiveOptions& options, int32_t next) {
  std::vector<int32_t> out(options.prompt.begin() + 1, options.prompt.end());
  out.push_back(next);
  return out;
}

Result<int32_t> best_token(const View& logits, int64_t row) {
  const std::span<const float> values(logits.row<float>(row), static_cast<size_t>(logits.dim(1)));
  if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); })) {
    return numerical_error(str_cat("the logits of a step are not finite (row ", row, ")"));
  }
  return static_cast<int32_t>(std::ranges::max_element(values) - values.begin());
}

}  // namespace fathom
