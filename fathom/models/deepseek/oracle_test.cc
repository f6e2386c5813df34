// Quantised models and the draft layer against the float64 oracle.
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"
#include "fathom/models/synth.h"
#include "tests/support/model_runner.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

std::vector<int32_t> some_tokens(int64_t count, int64_t vocab) {
  Rng rng(11);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.next_below(static_cast<uint32_t>(vocab))));
  }
  return tokens;
}

// |a - b| / |b|, over all numbers.
double relative_difference(const std::vector<float>& a, const std::vector<double>& b) {
  FATHOM_CHECK(a.size() == b.size());
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    error += d * d;
    size += b[i] * b[i];
  }
  return std::sqrt(error / size);
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
                         testing::Values(SynthCase{"v2-lite", Format::kBf16},
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

// micro-v3 with a draft layer: the weights of its last layer, and new ones for the rest.
class DraftModel : public testing::Test {
 protected:
  DraftModel() {
    const std::string source = FATHOM_SOURCE_DIR "/tests/golden/micro-v3";
    auto config = read_model_text(source, "config.json").value();
    const std::string key = "\"num_nextn_predict_layers\": 0";
    FATHOM_CHECK(config.find(key) != std::string::npos);
    config.replace(config.find(key), key.size(), "\"num_nextn_predict_layers\": 1");
    std::ofstream(dir_.file("config.json")) << config;
    const Checkpoint checkpoint = Checkpoint::open(source).value();
    for (const TensorRef& ref : checkpoint.tensors()) {
      std::string bytes(static_cast<size_t>(ref.entry.bytes()), ' ');
      FATHOM_CHECK(
          checkpoint.read(ref, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))).ok());
      add(ref.entry.name, ref.entry.dtype, ref.entry.shape, bytes);
      const std::string last = "model.layers.2.";
      if (!ref.entry.name.starts_with(last)) continue;
      add("model.layers.3." + ref.entry.name.substr(last.size()), ref.entry.dtype, ref.entry.shape,
          bytes);
    }
    add_random("enorm.weight", {64}, 1.0f);
    add_random("hnorm.weight", {64}, 1.0f);
    add_random("shared_head.norm.weight", {64}, 1.0f);
    add_random("eh_proj.weight", {64, 128}, 0.0f);
    std::ofstream(dir_.file("model.safetensors"), std::ios::binary)
        << format_safetensors_header(entries_, {}) << data_;
  }

  void add(const std::string& name, Format dtype, std::vector<int64_t> shape, std::string bytes) {
    entries_.push_back({name, dtype, std::move(shape), 0, 0});
    data_ += bytes;
  }

  void add_random(const std::string& name, std::vector<int64_t> shape, float mean) {
    Rng rng(entries_.size());
    int64_t count = 1;
    for (int64_t d : shape)
      count *= d;
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const Bf16 value = bf16_from_float(mean + 0.1f * rng.next_normal());
      bytes.append(reinterpret_cast<const char*>(&value), 2);
    }
    add("model.layers.3." + name, Format::kBf16, std::move(shape), bytes);
  }

  TempDir dir_;
  std::vector<TensorEntry> entries_;
  std::string data_;
};

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
