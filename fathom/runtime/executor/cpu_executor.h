// Steps on the CPU: computed by submit(), on the threads of the pool.
#pragma once

#include <memory>
#include <vector>

#include "fathom/runtime/executor/executor.h"

namespace fathom {

class CpuExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<Executor>> create(const Model& model,
                                                  const Compute& compute,
                                                  ExecutorSettings settings);

  Result<TimedStep> time(const Step& step, Recorder& recorder, int repetitions) override;

 protected:
  Status submit(const Step& step) override;
  Result<StepResults> collect() override;

 private:
  CpuExecutor(const Model& model, const Compute& compute, ExecutorSettings settings);

  Status run_pass(const Step& step, int64_t pass);
  void keep_best(std::span<SampleResult> results, size_t k);

  Sampler sampler_;
  std::vector<SampleResult> samples_;
  StepResults results_;
  std::vector<TokenLogprob> kept_best_;  // of all levels of a chain of trees
  // The same of one level; and levels in turn, each made from the one before.
  std::vector<int32_t> best_ids_;
  std::vector<float> best_logprobs_;

  struct LevelArrays {
    std::vector<int32_t> tokens, rows;
    std::vector<float> paths;
    std::vector<int64_t> masks;

    Level level(size_t num_tokens);
  } levels_[2];
};

}  // namespace fathom
