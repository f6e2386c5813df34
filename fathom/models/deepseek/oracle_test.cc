// Quantised models and the draft layer against the float64 oracle.
#include <cmath>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/models/synth.h"
#include "tests/support/draft_checkpoint.h"
#include "tests/support/model_runner.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using oracle::relative_difference;

std::vector<int32_t> some_tokens(int64_t count, int64_t vocab) {
  Rng rng(11);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.next_below(static_cast<uint32_t>(vocab))));
  }
  return tokens;
}

ModelOptions f32_options() {
  ModelOptions o;
  o.activations = Format::kF32;
  return o;
}

struct SynthCase {
  const char* version;
  Format format;
};

class SynthModel : public testing::TestWithParam<SynthCase> {
 protected:
  SynthModel() {
    SynthOptions options;
    options.version = GetParam().version;
    options.format = GetParam().format;
    options.layers = 2;
    options.hidden = 128;
    const auto report = synthesize_checkpoint(dir_.path(), options);
    FATHOM_CHECK(report.ok(), report.ok() ? "" : report.status().message());
  }

  TempDir dir_;
};

// In float32 a quantised kv_b is exact in every form of attention.
TEST_P(SynthModel, PrefillMatchesTheOracle) {
  oracle::ReferenceModel reference(dir_.path());
  ModelRunner runner(dir_.path(), f32_options());
  const auto tokens = some_tokens(19, reference.config().vocab_size);

  const StepResult result = runner.prefill(tokens);

  EXPECT_LE(relative_difference(result.logits, reference.logits(reference.hidden(tokens)).v), 3e-6);
}

TEST_P(SynthModel, DecodeMatchesTheOracle) {
  oracle::ReferenceModel reference(dir_.path());
  ModelRunner runner(dir_.path(), f32_options());
  const auto tokens = some_tokens(7, reference.config().vocab_size);

  std::vector<float> logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const StepResult result = runner.decode(tokens[i], static_cast<int64_t>(i));
    logits.insert(logits.end(), result.logits.begin(), result.logits.end());
  }

  EXPECT_LE(relative_difference(logits, reference.logits(reference.hidden(tokens)).v), 3e-6);
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         SynthModel,
                         testing::Values(SynthCase{"v1", Format::kFp8Block},
                                         SynthCase{"v1", Format::kNvfp4},
                                         SynthCase{"v2-lite", Format::kBf16},
                                         SynthCase{"v2", Format::kFp8Block},
                                         SynthCase{"v3", Format::kBf16},
                                         SynthCase{"v3", Format::kFp8Block},
                                         SynthCase{"v3", Format::kNvfp4},
                                         SynthCase{"r1", Format::kNvfp4}),
                         [](const auto& p) {
                           std::string name =
                               str_cat(p.param.version, "_", format_name(p.param.format));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class DraftModel : public testing::Test, protected DraftCheckpoint {};

TEST_F(DraftModel, DraftLogitsMatchTheOracle) {
  oracle::ReferenceModel reference(dir_.path());
  ModelRunner runner(dir_.path(), f32_options());
  ASSERT_TRUE(runner.model().has_draft());
  EXPECT_EQ(runner.model().cache_layout().groups[0].layers.size(), 4u);
  const auto tokens = some_tokens(23, reference.config().vocab_size);
  const std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
  const auto rows = static_cast<int64_t>(next.size());
  StepResult main = runner.prefill(tokens);
  const View hidden = make_view(main.hidden.data(), {rows, 64}, Format::kF32);
  const auto pages = ModelRunner::page_list(0, 4);

  const StepResult draft = runner.step(
      {{.tokens = next, .pages = pages, .logits = LogitRows::kAll}}, {}, nullptr, &hidden);

  oracle::Matrix states = reference.hidden(tokens);
  states.rows = rows;
  states.v.resize(static_cast<size_t>(rows * states.cols));
  const oracle::Matrix expected = reference.draft(next, states);
  EXPECT_LE(relative_difference(as_floats(draft.hidden), expected.v), 3e-6);
  EXPECT_LE(relative_difference(draft.logits, reference.logits(expected).v), 3e-6);
}

TEST_F(DraftModel, DraftStepAfterStepGivesWhatOnePassGives) {
  ModelRunner runner(dir_.path(), f32_options());
  const auto tokens = some_tokens(9, 4096);
  const std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
  const auto rows = static_cast<int64_t>(next.size());
  StepResult main = runner.prefill(tokens);
  const View hidden = make_view(main.hidden.data(), {rows, 64}, Format::kF32);
  const auto pages = ModelRunner::page_list(0, 4);
  const StepResult whole = runner.step(
      {{.tokens = next, .pages = pages, .logits = LogitRows::kAll}}, {}, nullptr, &hidden);

  for (int64_t i = 0; i < rows; ++i) {
    const View one = slice_rows(hidden, i, 1);
    const StepResult step =
        runner.step({},
                    {{.tokens = std::span(next).subspan(static_cast<size_t>(i), 1),
                      .cached = i,
                      .pages = pages}},
                    nullptr, &one);
    const std::vector<float> row = whole.row(i);
    EXPECT_LE(relative_difference(step.logits, std::vector<double>(row.begin(), row.end())), 3e-6)
        << i;
  }
}

TEST_F(DraftModel, DraftLayerIsLeftOutWhenTheOptionsSaySo) {
  ModelOptions options = f32_options();
  options.draft = false;
  ModelRunner runner(dir_.path(), options);

  EXPECT_FALSE(runner.model().has_draft());
  EXPECT_EQ(runner.model().cache_layout().groups[0].layers.size(), 3u);
}

}  // namespace
}  // namespace fathom
