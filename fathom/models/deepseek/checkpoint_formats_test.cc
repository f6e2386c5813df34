// Checkpoints of V4 and V3.2 in the layouts in which they are published. A model that reads one
// computes what it computes from the float32 values that the stored codes and scales stand for.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/models/deepseek/v4/v4_names.h"
#include "tests/support/model_runner.h"
#include "tests/support/relayout.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

const std::string kV4 = FATHOM_SOURCE_DIR "/tests/golden/micro-v4";
const std::string kV32 = FATHOM_SOURCE_DIR "/tests/golden/micro-v32";
// More than a window, so that every kind of row is read; enough for several rows of 4 tokens to be
// left out.
constexpr size_t kTokens = 140;

// quantization_config as DeepSeek, NVIDIA and seed 004's authors write it, abridged where it names
// modules.
constexpr const char* kFp8 =
    R"({"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128]})";
constexpr const char* kFp8F32 =
    R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128]})";
constexpr const char* kNvidia =
    R"({"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "moe_quant_algo": "NVFP4",
        "quant_algo": "MIXED_PRECISION", "group_size": 16, "ignore": ["head"]})";
constexpr const char* kModelopt =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "ignore": ["lm_head"]})";

bool holds(const std::string& name, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return name.find(part) != std::string::npos; });
}

bool is_expert(const std::string& name) {
  return holds(name, {".ffn.experts.", ".mlp.experts."});
}

// Linears that DeepSeek stores in FP8.
bool is_fp8_linear(const std::string& name) {
  return name.ends_with(".weight") &&
         holds(name, {".attn.wq_a.", ".attn.wq_b.", ".attn.wkv.", ".attn.wo_a.", ".attn.wo_b.",
                      ".indexer.wq_b.", ".shared_experts."});
}

NewTensor official(const std::string& name) {
  if (is_expert(name)) return {name, Format::kMxfp4};
  return {name, is_fp8_linear(name) ? Format::kFp8BlockUe8m0 : Format::kNone};
}

NewTensor nvidia(const std::string& name) {
  return {name, is_expert(name) ? Format::kNvfp4 : official(name).format};
}

// Everything that the checkpoint of seed 004 has in NVFP4; gate and up have scales of their own.
NewTensor full_nvfp4(const std::string& name) {
  const bool linear = is_expert(name) || (is_fp8_linear(name) && !holds(name, {".wo_a."})) ||
                      holds(name, {".compressor.wkv.", ".compressor.wgate."});
  return {transformers_name(name), linear ? Format::kNvfp4 : Format::kNone};
}

NewTensor transformers(const std::string& name) {
  return {transformers_name(name)};
}

// As the first releases of transformers called two of them.
NewTensor early_transformers(const std::string& name) {
  std::string out = transformers_name(name);
  for (const auto& [now, then] : {std::pair{".self_attn.q_a_norm.", ".self_attn.q_norm."},
                                  std::pair{".indexer.scorer.", ".indexer."}}) {
    const size_t at = out.find(now);
    if (at != std::string::npos) out.replace(at, std::string(now).size(), then);
  }
  return {out};
}

// Whatever may be quantised, in one format: the grouped projection, compressors and the weights of
// the indexer's heads as well.
Layout everything_in(Format format) {
  return [format](const std::string& name) -> NewTensor {
    const bool linear = is_expert(name) || is_fp8_linear(name) ||
                        holds(name, {".compressor.wkv.", ".compressor.wgate.", ".weights_proj."});
    return {name, linear ? format : Format::kNone};
  };
}

// V3.2 as released: FP8 but for the weights of the indexer's heads.
NewTensor v32_official(const std::string& name) {
  const bool linear = holds(name, {"_proj.weight", "_proj_with_mqa.weight", ".indexer.wq_b.weight",
                                   ".indexer.wk.weight"}) &&
                      !holds(name, {".weights_proj."});
  return {name, linear ? Format::kFp8Block : Format::kNone};
}

std::vector<float> logits_of(const std::string& directory) {
  ModelOptions options;
  options.activations = Format::kF32;
  options.kv_format = Format::kF32;
  options.indexer_format = Format::kF32;
  ModelRunner runner(directory, options);
  Rng rng(5);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < kTokens; ++i)
    tokens.push_back(static_cast<int32_t>(rng.next_below(4096)));
  return runner.prefill(tokens).logits;
}

struct LayoutCase {
  const char* name;
  const std::string& fixture;
  Layout layout;
  const char* quantization_config;
};

class CheckpointFormats : public testing::TestWithParam<LayoutCase> {};

TEST_P(CheckpointFormats, ComputeWhatTheirValuesStandFor) {
  const LayoutCase& c = GetParam();
  const TempDir dir;
  write_in_layout(c.fixture, c.layout, c.quantization_config, dir.file("as"), dir.file("values"));

  const std::vector<float> got = logits_of(dir.file("as"));
  const std::vector<float> expected = logits_of(dir.file("values"));

  ASSERT_EQ(got.size(), expected.size());
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << i;
    worst = std::max(worst, std::abs(got[i] - expected[i]));
  }
  EXPECT_LT(worst, 1e-3f);  // sums in another order; logits reach 18
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    CheckpointFormats,
    testing::Values(LayoutCase{"v4_official", kV4, official, kFp8},
                    LayoutCase{"v4_nvidia", kV4, nvidia, kNvidia},
                    LayoutCase{"v4_full_nvfp4", kV4, full_nvfp4, kModelopt},
                    LayoutCase{"v4_transformers", kV4, transformers, ""},
                    LayoutCase{"v4_early_transformers", kV4, early_transformers, ""},
                    LayoutCase{"v4_nvfp4", kV4, everything_in(Format::kNvfp4), kModelopt},
                    LayoutCase{"v4_mxfp4", kV4, everything_in(Format::kMxfp4),
                               R"({"quant_method": "mxfp4"})"},
                    LayoutCase{"v4_fp8", kV4, everything_in(Format::kFp8BlockUe8m0), kFp8},
                    LayoutCase{"v4_fp8_f32_scales", kV4, everything_in(Format::kFp8Block), kFp8F32},
                    LayoutCase{"v32_official", kV32, v32_official, kFp8F32}),
    [](const testing::TestParamInfo<LayoutCase>& c) { return c.param.name; });

}  // namespace
}  // namespace fathom
