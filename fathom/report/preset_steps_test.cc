// The tables of a benchmark and the documents of a trace speak of the same graph.
#include <algorithm>
#include <gtest/gtest.h>

#include "fathom/bench/preset/steps.h"
#include "fathom/report/record/dry_trace.h"
#include "fathom/report/test_models_test.h"

namespace fathom {
namespace {

class PresetBytes : public testing::TestWithParam<const char*> {};

TEST_P(PresetBytes, AreTheWeightsCacheAndActivationsOfTheTrace) {
  const auto model = dry_model(GetParam());
  const TraceShape shape{.batch = 1, .prompt_tokens = 1024, .kv_len = 1024};
  const StepChoice choice{.batch = {1}, .seq = {1024}, .kv_len = {1024}};
  const auto steps = preset_steps(find_preset(GetParam()).value(), choice).value();
  for (const PresetStep& step : steps) {
    const StepPoint& p = step.point;
    const std::string phase =
        p.phase == "prefill" && p.keys > 0 ? "prefill_chunked" : std::string(p.phase);
    const TracePhase traced = dry_phase(*model, phase, shape).value();
    Traffic sum;
    for (const TraceOp& op : traced.ops) {
      sum.weights += op.calls * op.traffic.weights;
      sum.cache += op.calls * op.traffic.cache;
      sum.activations += op.calls * op.traffic.activations;
    }

    EXPECT_EQ(step.bytes(), sum.weights + sum.cache + sum.activations) << phase;
    EXPECT_EQ(step.num_calls(), traced.calls()) << phase;
  }
}

INSTANTIATE_TEST_SUITE_P(Presets,
                         PresetBytes,
                         testing::Values("deepseek-r1-nvfp4",
                                         "deepseek-v3-fp8",
                                         "deepseek-v2-lite",
                                         "deepseek-moe-16b",
                                         "deepseek-v3.2",
                                         "deepseek-v4-flash",
                                         "deepseek-v4-pro-nvfp4"),
                         [](const auto& param) {
                           std::string name(param.param);
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace fathom
