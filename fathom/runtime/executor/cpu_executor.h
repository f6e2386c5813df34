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

  Sampler sampler_;
  std::vector<SampleResult> samples_;
  StepResults results_;
};

}  // namespace fathom
