// Models whose products read NVFP4 (W4A4) against the float64 oracle with activations rounded so.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "tests/support/draft_checkpoint.h"
#include "tests/support/model_runner.h"
#include "tests/support/reference_model.h"
#include "tests/support/relayout.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

// Every linear but the router and the head; of V4, which has other names, the experts.
NewTensor all_nvfp4(const std::string& name) {
  const bool linear =
      (name.find("_proj") != std::string::npos || name.find(".experts.") != std::string::npos) &&
      name.find("weights_proj") == std::string::npos && name.ends_with(".weight");
  return {name, linear ? Format::kNvfp4 : Format::kNone};
}

ModelOptions in_f32(Nvfp4Inputs inputs) {
  ModelOptions options;
  options.activations = Format::kF32;
  options.nvfp4_inputs = inputs;
  return options;
}

class QuantisedActivations : public testing::TestWithParam<const char*> {
 protected:
  QuantisedActivations() {
    write_in_layout(std::string(FATHOM_SOURCE_DIR "/tests/golden/") + GetParam(), all_nvfp4, "",
                    target_, dir_.file("plain"));
    Rng rng(11);
    for (int i = 0; i < 19; ++i)
      tokens_.push_back(static_cast<int32_t>(rng.next_below(4096)));
  }

  StepResult logits(Nvfp4Inputs inputs) const {
    return ModelRunner(target_, in_f32(inputs)).prefill(tokens_);
  }

  TempDir dir_;
  std::string target_ = dir_.file("nvfp4");
  std::vector<int32_t> tokens_;
};

// Codes turn over where a value is within float32's rounding of the middle between two: seldom, and
// then a row and what attends to it are a little apart. All others agree to float32.
TEST_P(QuantisedActivations, GiveTheLogitsOfRoundedActivations) {
  oracle::ReferenceModel reference(target_);
  reference.round_nvfp4_inputs();
  const oracle::Matrix expected = reference.logits(reference.hidden(tokens_));

  const StepResult result = logits(Nvfp4Inputs::kQuantised);

  int close = 0;
  for (int64_t t = 0; t < expected.rows; ++t) {
    const auto begin = expected.v.begin() + t * expected.cols;
    const double error = oracle::relative_difference(
        result.row(t), std::vector<double>(begin, begin + expected.cols));
    close += error < 1e-5 ? 1 : 0;
    EXPECT_LT(error, 0.1) << t;
  }
  EXPECT_GE(close, 15);
}

class QuantisedModels : public QuantisedActivations {};

// The weights are random: little of a state need be left.
TEST_P(QuantisedModels, ComputeOtherLogitsThanWithExactActivations) {
  const std::vector<float> exact = logits(Nvfp4Inputs::kExact).logits;
  const std::vector<float> rounded = logits(Nvfp4Inputs::kQuantised).logits;

  const double error = oracle::relative_difference(rounded, {exact.begin(), exact.end()});

  RecordProperty("error", std::to_string(error));
  EXPECT_GT(error, 0.01);
  EXPECT_LT(error, 1.0);
}

std::string fixture_name(const testing::TestParamInfo<const char*>& p) {
  std::string name = p.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Micro,
                         QuantisedActivations,
                         testing::Values("micro-v2-lite", "micro-v2", "micro-v3"),
                         fixture_name);
INSTANTIATE_TEST_SUITE_P(
    Micro,
    QuantisedModels,
    testing::Values("micro-v2-lite", "micro-v2", "micro-v3", "micro-v32", "micro-v4"),
    fixture_name);

// NVIDIA's exports have their draft layer in bf16.
TEST(QuantisedDrafts, RoundWhatWeightsInNvfp4ReadAndNothingElse) {
  const DraftCheckpoint source;
  for (const bool exact_draft : {true, false}) {
    const Layout layout = [=](const std::string& name) {
      return exact_draft && name.starts_with("model.layers.3.") ? NewTensor{name} : all_nvfp4(name);
    };
    TempDir dir;
    write_in_layout(source.path(), layout, "", dir.file("nvfp4"), dir.file("plain"));
    oracle::ReferenceModel reference(dir.file("nvfp4"));
    reference.round_nvfp4_inputs();
    ModelRunner runner(dir.file("nvfp4"), in_f32(Nvfp4Inputs::kQuantised));
    const std::vector<int32_t> tokens{5, 17, 900, 3, 41, 8, 2500, 77};
    const std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
    const auto rows = static_cast<int64_t>(next.size());
    StepResult main = runner.prefill(tokens);
    const View hidden = make_view(main.hidden.data(), {rows, 64}, Format::kF32);
    const auto pages = ModelRunner::page_list(0, 4);

    const StepResult draft = runner.step(
        {{.tokens = next, .pages = pages, .logits = LogitRows::kAll}}, {}, nullptr, &hidden);

    oracle::Matrix states(rows, 64);
    const std::vector<float> read = as_floats(main.hidden);
    std::copy_n(read.begin(), states.v.size(), states.v.begin());
    const oracle::Matrix expected = reference.draft(next, states);
    EXPECT_LE(oracle::relative_difference(draft.logits, reference.logits(expected).v), 1e-5)
        << exact_draft;
  }
}

TEST(QuantisedActivationsOfAModel, NeedWeightsInNvfp4) {
  OpenOptions open;
  open.model.nvfp4_inputs = Nvfp4Inputs::kQuantised;
  open.weights = WeightOrigin::kNone;
  const std::string directory = FATHOM_SOURCE_DIR "/tests/golden/micro-v3";

  const auto model = open_model(ModelSource::open(directory).value(), {}, open);

  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(model.status().message().find("no weights in nvfp4"), std::string::npos);
}

}  // namespace
}  // namespace fathom
