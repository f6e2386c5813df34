// Random checkpoints of DeepSeek-V3.2 and V4: what is in them, and that they run.
#include "fathom/models/synth.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "fathom/base/rng.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/weights/checkpoint/linear_format.h"
#include "tests/support/model_runner.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using testing::HasSubstr;

SynthOptions options_of(std::string_view version, Format format) {
  return {.version = std::string(version), .layers = 4, .hidden = 128, .format = format};
}

void synthesize(const TempDir& dir, const SynthOptions& options) {
  const auto report = synthesize_checkpoint(dir.path(), options);
  FATHOM_CHECK(report.ok(), report.ok() ? "" : report.status().message());
}

std::vector<int32_t> some_tokens(int64_t count) {
  Rng rng(5);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(rng.next_below(256)) + 3);
  return tokens;
}

std::vector<std::byte> bytes_of(const Checkpoint& files, const TensorRef& tensor) {
  std::vector<std::byte> out(static_cast<size_t>(tensor.entry.bytes()));
  FATHOM_CHECK(files.read(tensor, out).ok());
  return out;
}

std::vector<float> decoded(const Checkpoint& files, std::string_view weight) {
  const StoredLinear stored = describe_linear(files, weight).value();
  const std::vector<std::byte> values = bytes_of(files, *stored.weight);
  std::vector<std::byte> scales;
  RowMajorMatrix m{.format = stored.format, .n = stored.n, .k = stored.k, .values = values.data()};
  if (stored.scale != nullptr) scales = bytes_of(files, *stored.scale);
  m.scales = scales.data();
  if (stored.global_scale != nullptr) {
    m.global = read_tensor_scale(files, *stored.global_scale).value();
  }
  std::vector<float> w(static_cast<size_t>(stored.n * stored.k));
  for (int64_t row = 0; row < stored.n; ++row) {
    decode_row_major_row(
        m, row,
        std::span(w).subspan(static_cast<size_t>(row * stored.k), static_cast<size_t>(stored.k)));
  }
  return w;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(error / size);
}

struct SynthCase {
  const char* version;
  Format format;
};

class SynthRuns : public testing::TestWithParam<SynthCase> {};

// 90 tokens complete rows of the indexer beyond its best 16, 40 more the first row of 128.
TEST_P(SynthRuns, LogitsAreFiniteAndTheSameTwice) {
  const TempDir dir;
  synthesize(dir, options_of(GetParam().version, GetParam().format));
  const auto tokens = some_tokens(130);
  const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + 90);
  const auto run = [&] {
    ModelRunner runner(dir.path());
    std::vector<float> logits = runner.prefill(prompt).logits;
    for (int64_t i = 90; i < 130; ++i) {
      const StepResult step = runner.decode(tokens[static_cast<size_t>(i)], i);
      logits.insert(logits.end(), step.logits.begin(), step.logits.end());
    }
    return logits;
  };

  const std::vector<float> first = run();
  const std::vector<float> second = run();

  EXPECT_TRUE(std::all_of(first.begin(), first.end(), [](float x) { return std::isfinite(x); }));
  EXPECT_EQ(first, second);
  // Rows of logits differ, so the model reads its tokens.
  const auto vocab = static_cast<ptrdiff_t>(first.size() / 130);
  EXPECT_FALSE(std::equal(first.begin(), first.begin() + vocab, first.end() - vocab));
}

// By the same seed a weight of any format is that of bf16, rounded.
// DeepSeek-V3.2's rows of codes with scales: every token attends in the absorbed form, so however
// the prompt is cut it has the same bits, and they are near those of a cache that rounds nothing.
TEST(SynthV32, RowsInFp8GiveNearlyWhatFloatsGive) {
  const TempDir dir;
  synthesize(dir, options_of("v3.2", Format::kBf16));
  const auto tokens = some_tokens(60);
  // Of the last of `count` tokens, the first `cut` of them in a step of their own.
  const auto logits = [&](Format cache, size_t count, size_t cut) {
    ModelOptions options;
    options.activations = Format::kF32;
    options.kv_format = cache;
    options.indexer_format = Format::kF32;
    options.attention.always_absorbed = true;
    ModelRunner runner(dir.path(), options);
    const auto pages = ModelRunner::page_list(0, 4);
    const auto all = std::span(tokens).first(count);
    if (cut > 0) runner.step({{.tokens = all.first(cut), .pages = pages}}, {});
    return runner
        .step({{.tokens = all.subspan(cut), .cached = static_cast<int64_t>(cut), .pages = pages}},
              {})
        .row(0);
  };

  const std::vector<float> whole = logits(Format::kE4m3, 60, 0);

  EXPECT_EQ(logits(Format::kE4m3, 60, 1), whole);
  EXPECT_EQ(logits(Format::kE4m3, 60, 37), whole);
  // 16 keys: all of them are chosen. Beyond that random weights make rounding choose others.
  const double error = relative_error(logits(Format::kE4m3, 16, 0), logits(Format::kF32, 16, 0));
  EXPECT_LT(error, 0.1);
  EXPECT_GT(error, 1e-4);
}

TEST_P(SynthRuns, WeightsAreThoseOfBf16Rounded) {
  const TempDir dir;
  const TempDir dense_dir;
  synthesize(dir, options_of(GetParam().version, GetParam().format));
  synthesize(dense_dir, options_of(GetParam().version, Format::kBf16));
  const Checkpoint files = Checkpoint::open(dir.path()).value();
  const Checkpoint dense = Checkpoint::open(dense_dir.path()).value();
  const bool v4 = std::string_view(GetParam().version) == "v4";
  const std::vector<std::string> names =
      v4 ? std::vector<std::string>{"layers.1.attn.wq_b.weight", "layers.2.attn.wo_a.weight",
                                    "layers.3.ffn.experts.5.w2.weight"}
         : std::vector<std::string>{"model.layers.1.self_attn.indexer.wq_b.weight",
                                    "model.layers.3.mlp.experts.5.down_proj.weight"};

  for (const std::string& name : names) {
    const Format format = describe_linear(files, name)->format;
    const double expected = format == Format::kBf16    ? 0
                            : format == Format::kMxfp4 ? 0.12
                            : format == Format::kNvfp4 ? 0.09
                                                       : 0.026;
    EXPECT_NEAR(relative_error(decoded(files, name), decoded(dense, name)), expected,
                0.25 * expected)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         SynthRuns,
                         testing::Values(SynthCase{"v3.2", Format::kBf16},
                                         SynthCase{"v3.2", Format::kFp8Block},
                                         SynthCase{"v3.2", Format::kNvfp4},
                                         SynthCase{"v4", Format::kBf16},
                                         SynthCase{"v4", Format::kFp8Block},
                                         SynthCase{"v4", Format::kNvfp4},
                                         SynthCase{"v4", Format::kMxfp4}),
                         [](const auto& p) {
                           std::string name =
                               str_cat(p.param.version, "_", format_name(p.param.format));
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

struct V4Tensor {
  const char* name;
  Format dtype;
  std::vector<int64_t> shape;
};

// Layer 0 has a window alone, 1 and 3 rows of 4 tokens, 2 rows of 128; the first two route by id.
TEST(Synth, V4HasTheTensorsOfTheRelease) {
  const TempDir dir;
  synthesize(dir, options_of("v4", Format::kMxfp4));
  const Checkpoint files = Checkpoint::open(dir.path()).value();
  const std::vector<V4Tensor> expected = {
      {"embed.weight", Format::kBf16, {320, 128}},
      {"head.weight", Format::kBf16, {320, 128}},
      {"hc_head_fn", Format::kF32, {4, 512}},
      {"hc_head_scale", Format::kF32, {1}},
      {"layers.0.hc_attn_fn", Format::kF32, {24, 512}},
      {"layers.0.hc_ffn_base", Format::kF32, {24}},
      {"layers.0.attn.attn_sink", Format::kF32, {4}},
      {"layers.0.attn.wq_a.weight", Format::kE4m3, {128, 128}},
      {"layers.0.attn.wq_a.scale", Format::kUe8m0, {1, 1}},
      {"layers.0.attn.wo_a.scale", Format::kUe8m0, {2, 2}},
      {"layers.0.ffn.gate.tid2eid", Format::kI64, {320, 4}},
      {"layers.1.ffn.gate.tid2eid", Format::kI64, {320, 4}},
      {"layers.1.attn.compressor.ape", Format::kF32, {4, 256}},
      {"layers.1.attn.compressor.wgate.weight", Format::kBf16, {256, 128}},
      {"layers.1.attn.indexer.compressor.ape", Format::kF32, {4, 128}},
      {"layers.1.attn.indexer.wq_b.scale", Format::kUe8m0, {2, 1}},
      {"layers.1.attn.indexer.weights_proj.weight", Format::kBf16, {4, 128}},
      {"layers.2.attn.compressor.ape", Format::kF32, {128, 128}},
      {"layers.2.attn.compressor.norm.weight", Format::kBf16, {128}},
      {"layers.2.ffn.gate.bias", Format::kF32, {8}},
      {"layers.3.ffn.experts.7.w1.weight", Format::kI8, {128, 64}},
      {"layers.3.ffn.experts.7.w1.scale", Format::kUe8m0, {128, 4}},
      {"layers.3.ffn.shared_experts.w2.scale", Format::kUe8m0, {1, 1}},
  };
  for (const V4Tensor& t : expected) {
    const TensorRef* found = files.find(t.name);
    ASSERT_NE(found, nullptr) << t.name;
    EXPECT_EQ(found->entry.dtype, t.dtype) << t.name;
    EXPECT_EQ(found->entry.shape, t.shape) << t.name;
  }
  for (const char* absent :
       {"layers.0.attn.compressor.ape", "layers.2.attn.indexer.wq_b.weight",
        "layers.2.ffn.gate.tid2eid", "layers.1.ffn.gate.bias", "mtp.0.e_proj.weight"}) {
    EXPECT_EQ(files.find(absent), nullptr) << absent;
  }
}

TEST(Synth, TokensOfV4HaveDifferentExperts) {
  const TempDir dir;
  synthesize(dir, options_of("v4", Format::kBf16));
  const Checkpoint files = Checkpoint::open(dir.path()).value();
  const std::vector<std::byte> bytes =
      bytes_of(files, *files.get("layers.0.ffn.gate.tid2eid").value());
  std::vector<int64_t> ids(bytes.size() / sizeof(int64_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  std::set<int64_t> all;

  for (size_t row = 0; row < ids.size(); row += 4) {
    const std::set<int64_t> of_token(ids.begin() + static_cast<ptrdiff_t>(row),
                                     ids.begin() + static_cast<ptrdiff_t>(row + 4));
    EXPECT_EQ(of_token.size(), 4u) << row / 4;
    all.insert(of_token.begin(), of_token.end());
  }
  EXPECT_THAT(all, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

// Engines fuse w1 and w3, so they have one scale of the whole tensor, as in NVIDIA's files.
TEST(Synth, FusedExpertsOfV4ShareTheirScaleInNvfp4) {
  const TempDir dir;
  synthesize(dir, options_of("v4", Format::kNvfp4));
  const Checkpoint files = Checkpoint::open(dir.path()).value();
  const auto scale = [&](const char* name) {
    return read_tensor_scale(files, *files.get(name).value()).value();
  };

  EXPECT_EQ(scale("layers.2.ffn.experts.3.w1.weight_scale_2"),
            scale("layers.2.ffn.experts.3.w3.weight_scale_2"));
  EXPECT_NE(scale("layers.2.ffn.experts.3.w1.weight_scale_2"),
            scale("layers.2.ffn.experts.3.w2.weight_scale_2"));
  EXPECT_EQ(describe_linear(files, "layers.2.attn.wq_b.weight")->format, Format::kFp8BlockUe8m0);
}

TEST(Synth, RefusesWhatAVersionDoesNotHave) {
  const TempDir dir;
  const auto refusal = [&](const SynthOptions& options) {
    return synthesize_checkpoint(dir.file("model"), options).status().message();
  };
  SynthOptions few = options_of("v4", Format::kBf16);
  few.layers = 2;

  EXPECT_THAT(refusal(few), HasSubstr("--layers is 2, expected a multiple of 1 from 3 to 128"));
  EXPECT_THAT(refusal(options_of("v3.2", Format::kMxfp4)),
              HasSubstr("--format is mxfp4, expected bf16, fp8_block or nvfp4 for --version v3.2"));
  EXPECT_THAT(refusal(options_of("v5", Format::kBf16)),
              HasSubstr("--version is 'v5'; known are v1, v2-lite, v2, v3, r1, v3.2, v4"));
  EXPECT_THAT(refusal(options_of("v4", Format::kInt8Channel)),
              HasSubstr("expected bf16, fp8_block, nvfp4 or mxfp4; fathom quantize makes others"));
}

}  // namespace
}  // namespace fathom
