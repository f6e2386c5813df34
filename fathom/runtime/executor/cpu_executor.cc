#include "fathom/runtime/executor/cpu_executor.h"

#include <algorithm>
#include <utility>

#include "fathom/kernels/spec/draft_tree/best_in_order.h"
#include "fathom/os/clock.h"
#include "fathom/runtime/executor/median.h"
#include "fathom/trace/scope.h"

namespace fathom {

CpuExecutor::CpuExecutor(const Model& model, const Compute& compute, ExecutorSettings settings)
    : Executor(model, compute, std::move(settings)),
      sampler_(settings_.shape.num_ids, settings_.shape.max_samples()) {
  samples_.reserve(static_cast<size_t>(settings_.shape.max_samples()));
  settings_.shape.reserve(batch_, model.cache_layout());
  const auto tokens = static_cast<size_t>(settings_.shape.tree_tokens());
  for (LevelArrays& arrays : levels_)
    arrays.level(tokens);
  best_ids_.reserve(tokens * kMostBranches);
  best_logprobs_.reserve(tokens * kMostBranches);
  kept_best_.reserve(tokens * kMostBranches);
}

Executor::Level CpuExecutor::LevelArrays::level(size_t num_tokens) {
  const auto view = [&](auto& values, Format format) {
    values.resize(num_tokens);
    return make_view(values.data(), {static_cast<int64_t>(num_tokens)}, format, "T");
  };
  return {.tokens = view(tokens, Format::kI32),
          .rows = view(rows, Format::kI32),
          .paths = view(paths, Format::kF32),
          .masks = view(masks, Format::kI64)};
}

Result<std::unique_ptr<Executor>> CpuExecutor::create(const Model& model,
                                                      const Compute& compute,
                                                      ExecutorSettings settings) {
  std::unique_ptr<CpuExecutor> executor(new CpuExecutor(model, compute, std::move(settings)));
  FATHOM_TRY(executor->allocate());
  return std::unique_ptr<Executor>(std::move(executor));
}

Status CpuExecutor::submit(const Step& step) {
  results_ = {};
  kept_best_.clear();
  FATHOM_TRY(cache_.copy_slots(step.slot_copies, nullptr));
  if (step.wants == StepWants::kTokens) samples_.assign(step.samples.size(), {});
  for (int64_t pass = 0; pass < step.chain; ++pass)
    FATHOM_TRY(run_pass(step, pass));
  if (step.wants == StepWants::kTokens) results_.samples = samples_;
  return {};
}

Status CpuExecutor::run_pass(const Step& step, int64_t pass) {
  activations_.reset();
  FATHOM_ASSIGN(Batch batch, batch_.build(step.prefill, requests_of(step, pass)));
  const size_t count = step.samples.size() / static_cast<size_t>(step.chain);
  const size_t first = static_cast<size_t>(pass) * count;
  Level level;
  if (pass == 0) {
    batch.state_rows = state_rows(step, batch.num_tokens());
    level.paths = node_paths(step, batch.num_tokens());
    level.masks = batch.attention.decode.tree_masks;
  } else if (step.chains_levels()) {
    level = levels_[pass % 2].level(count);
    level.enter(batch);
  } else {
    // A row without a token keeps that of the first pass: whatever it gives is worth nothing.
    for (size_t i = 0; i < count; ++i) {
      const SampleResult& before = samples_[first - count + i];
      if (before.finite) batch.token_ids.as<int32_t>()[i] = before.token;
    }
  }
  ForwardOut out;
  FATHOM_TRY(forward(step, pass, batch, out));
  results_.hidden = out.hidden;
  if (step.wants == StepWants::kLogits) results_.logits = out.logits;
  if (step.wants != StepWants::kTokens) return {};
  const Scope scope(exec_.recorder, "sample");
  const std::span results = std::span(samples_).subspan(first, count);
  FATHOM_TRY(sampler_.sample(exec_, out.logits, step.samples.subspan(first, count), results));
  if (!step.chains_levels()) return {};
  const auto k = step.tokens_each();
  keep_best(results, static_cast<size_t>(k));
  if (pass + 1 == step.chain) return {};
  const auto tokens = static_cast<int64_t>(count);
  return choose_level(make_view(best_ids_.data(), {tokens, k}, Format::kI32, "T,guesses"),
                      make_view(best_logprobs_.data(), {tokens, k}, Format::kF32, "T,guesses"),
                      level, levels_[(pass + 1) % 2].level(count));
}

// The best `k` tokens of each node of a level, whose results outlive the pass.
void CpuExecutor::keep_best(std::span<SampleResult> results, size_t k) {
  best_ids_.clear();
  best_logprobs_.clear();
  for (SampleResult& result : results) {
    const size_t begin = kept_best_.size();
    for (size_t c = 0; c < k; ++c) {
      const bool known = result.finite && c < result.top_logprobs.size();
      const TokenLogprob best = known ? result.top_logprobs[c] : TokenLogprob{.token = -1};
      best_ids_.push_back(best.token);
      best_logprobs_.push_back(best.logprob);
      if (known) kept_best_.push_back(best);
    }
    result.top_logprobs = std::span(kept_best_).subspan(begin);
  }
}

Result<StepResults> CpuExecutor::collect() {
  return results_;
}

Result<TimedStep> CpuExecutor::time(const Step& step, Recorder& recorder, int repetitions) {
  Step alone = step;
  alone.wants = StepWants::kNothing;
  alone.samples = {};
  Recorder* const usual = std::exchange(exec_.recorder, nullptr);
  std::vector<double> steps;
  std::vector<std::vector<double>> ops;
  Status status = submit(alone);  // warms up
  for (int r = 0; r < repetitions && status.ok(); ++r) {
    const int64_t begin = monotonic_ns();
    status = submit(alone);
    steps.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-3);
    if (!status.ok()) break;
    recorder.clear();
    exec_.recorder = &recorder;
    status = submit(alone);
    exec_.recorder = nullptr;
    const std::vector<OpRecord> records = recorder.records();
    ops.resize(records.size());
    for (size_t i = 0; i < records.size(); ++i)
      ops[i].push_back(static_cast<double>(records[i].end_ns - records[i].start_ns) * 1e-3);
  }
  exec_.recorder = usual;
  FATHOM_TRY(std::move(status));
  TimedStep timed;
  timed.step_us = timed.one_stream_us = median_of(std::move(steps));
  for (auto& of_op : ops)
    timed.op_us.push_back(median_of(std::move(of_op)));
  return timed;
}

}  // namespace fathom
