// The best tokens of each row of a step on a GPU, and the levels of trees that they lead to.
#include <algorithm>
#include <cmath>

#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/sample/top_logprobs/top_logprobs.h"
#include "fathom/runtime/executor/gpu_executor.h"

namespace fathom {

// As many for every row as anybody may ask for: captured steps serve them all, and what a row gets
// does not depend on its neighbours.
int64_t GpuExecutor::num_best() const {
  return std::min<int64_t>(kMaxTopLogprobs, settings_.shape.num_ids);
}

// The ids of the best tokens of a pass, or their log-probabilities.
View GpuExecutor::best_of(int64_t pass, bool ids) const {
  const int64_t k = num_best();
  const int64_t rows = best_.dim(1);
  const int64_t first = k * (ids ? pass : step_.chain + pass);
  View best = reshape(slice_rows(best_, first, k), {rows, k}, "R,guesses");
  if (!ids) best.format = Format::kF32;
  return best;
}

Status GpuExecutor::find_best(int64_t pass, const ForwardOut& out) {
  if (!best_.present()) return {};
  const int64_t behind_pairs = 2 * step_.chain * num_best();
  View largest = reshape(slice_rows(best_, behind_pairs + pass, 1), {best_.dim(1)}, "R");
  largest.format = Format::kF32;
  return launch<TopLogprobs>(exec_, "sample_logprobs",
                             {.logits = slice_cols(out.logits, 0, settings_.shape.num_ids),
                              .ids = best_of(pass, true),
                              .logprobs = best_of(pass, false),
                              .largest = largest});
}

Status GpuExecutor::place_levels(const Step& step, int64_t rows) {
  const int64_t levels = step.chain - 1;
  FATHOM_ASSIGN(levels_, exec_.activations->tensor({3 * levels, rows}, Format::kI32, "3*n,R"));
  FATHOM_ASSIGN(level_masks_, exec_.activations->tensor({levels, rows}, Format::kI64, "n,R"));
  return {};
}

Executor::Level GpuExecutor::level_of(int64_t pass) const {
  if (pass == 0) {
    return {.paths = node_paths_view_, .masks = passes_[0].batch.attention.decode.tree_masks};
  }
  const int64_t rows = levels_.dim(1);
  const auto row = [&](const View& v, int64_t i) {
    return reshape(slice_rows(v, i, 1), {rows}, "T");
  };
  const int64_t first = 3 * (pass - 1);
  Level level{.tokens = row(levels_, first),
              .rows = row(levels_, first + 1),
              .paths = row(levels_, first + 2),
              .masks = row(level_masks_, pass - 1)};
  level.paths.format = Format::kF32;
  return level;
}

// All rows of logits are tokens of the level, in order, and so they are of copies.
Status GpuExecutor::choose_behind(int64_t pass) {
  const auto k = step_.tokens_each();
  return choose_level(slice_cols(best_of(pass, true), 0, k), slice_cols(best_of(pass, false), 0, k),
                      level_of(pass), level_of(pass + 1));
}

// Log-probabilities of the rows whose best tokens were found. The logits of tokens that are none of
// these come after them: sampling has left them as they were. In chains of levels each token is.
Status GpuExecutor::add_best(const int32_t* numbers, int64_t num_rows) {
  const auto rows = static_cast<size_t>(step_.chain * num_rows);
  const auto k = static_cast<size_t>(num_best());
  const size_t count = samples_.size() / static_cast<size_t>(step_.chain);
  const auto* floats = reinterpret_cast<const float*>(numbers);
  const BestTokens best{.count = k,
                        .ids = {numbers, rows * k},
                        .logprobs = {floats + rows * k, rows * k},
                        .largest = {floats + 2 * rows * k, rows}};
  auto* logits = reinterpret_cast<float*>(results_.data() + logits_at_);
  not_best_.clear();
  for (size_t i = 0; i < samples_.size(); ++i) {
    SampleResult& result = samples_[i];
    if (!needs_best_tokens(step_.samples[i]) || !result.finite) continue;
    const size_t row = i / count * static_cast<size_t>(num_rows) + i % count;
    // The choice is made of masked logits; what the mask hides may be NaN.
    result.finite = std::isfinite(best.largest[row]);
    if (!result.finite) continue;
    if (logprobs_.add_best(best, row, step_.samples[i], result) || step_.chain > 1) continue;
    const float* logit = out_.logits.row<float>(static_cast<int64_t>(i)) + result.token;
    FATHOM_TRY(exec_.stream->copy(logits + not_best_.size(), logit, 4));
    not_best_.push_back(i);
  }
  if (not_best_.empty()) return {};
  FATHOM_TRY(exec_.stream->synchronize());
  for (size_t n = 0; n < not_best_.size(); ++n)
    Logprobs::set_logprob(best, not_best_[n], logits[n], samples_[not_best_[n]]);
  return {};
}

}  // namespace fathom
