#include "fathom/models/config/config.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>

#include "fathom/models/config/presets.h"

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string read_fixture(const std::string& name) {
  std::ifstream in(FATHOM_SOURCE_DIR "/tests/golden/" + name);
  return {std::istreambuf_iterator<char>(in), {}};
}

// micro-v3's config.json with `from` replaced by `to`.
std::string edited(const std::string& from, const std::string& to) {
  std::string text = read_fixture("micro-v3/config.json");
  const size_t at = text.find(from);
  FATHOM_CHECK(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

Status error_of(const std::string& text) {
  const auto result = parse_config(text);
  return result.ok() ? Status{} : Status::error(result.status().code(), result.status().message());
}

TEST(Config, ReadsMicroV3) {
  const auto c = parse_config(read_fixture("micro-v3/config.json"));
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(c->hidden_size, 64);
  EXPECT_EQ(c->q_lora_rank, 32);
  EXPECT_EQ(c->kv_width(), 48);
  EXPECT_EQ(c->topk_method, TopkMethod::kNoauxTc);
  EXPECT_TRUE(c->norm_topk_prob);
  EXPECT_EQ(c->routed_scaling_factor, 2.5);
  EXPECT_TRUE(c->rope_scaling.yarn);
  EXPECT_EQ(c->rope_scaling.factor, 4.0);
  EXPECT_EQ(c->bos_token_id, 0);
  EXPECT_THAT(c->eos_token_ids, ElementsAre(1));
}

TEST(Config, ReadsMicroV2LiteWithoutQueryLatent) {
  const auto c = parse_config(read_fixture("micro-v2-lite/config.json"));
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->q_lora_rank, 0);
  EXPECT_EQ(c->topk_method, TopkMethod::kGreedy);
  EXPECT_EQ(c->n_shared_experts, 2);
  EXPECT_EQ(c->rope_scaling.mscale_all_dim, 0.707);
  EXPECT_FALSE(c->symbols().find("Lq").has_value());
}

TEST(Config, LayersAreMoeFromTheFirstReplacedOneOn) {
  ModelConfig c = find_preset("deepseek-v3")->config;
  EXPECT_FALSE(c.is_moe_layer(2));
  EXPECT_TRUE(c.is_moe_layer(3));
  EXPECT_TRUE(c.is_moe_layer(61));
  c.moe_layer_freq = 2;
  EXPECT_FALSE(c.is_moe_layer(3));
  EXPECT_TRUE(c.is_moe_layer(4));
  c.n_routed_experts = 0;
  EXPECT_FALSE(c.is_moe_layer(4));
}

TEST(Config, SoftmaxScaleHasTheSquaredMscale) {
  EXPECT_NEAR(find_preset("deepseek-v3")->config.softmax_scale(), 0.135233779, 1e-9);
  EXPECT_NEAR(find_preset("deepseek-v2-lite")->config.softmax_scale(), 0.114721387, 1e-9);
  ModelConfig plain = find_preset("deepseek-v3")->config;
  plain.rope_scaling = {};
  EXPECT_NEAR(plain.softmax_scale(), 0.0721687836, 1e-10);
  EXPECT_NEAR(yarn_mscale(40, 1.0), 1.36888795, 1e-8);
  EXPECT_NEAR(yarn_mscale(40, 0.707), 1.26080378, 1e-8);
  EXPECT_EQ(yarn_mscale(1, 1.0), 1.0);
}

TEST(Config, RopeAttentionFactorIsOneForEqualMscales) {
  EXPECT_EQ(find_preset("deepseek-v2")->config.rope_attention_factor(), 1.0);
  ModelConfig c = find_preset("deepseek-v3")->config;
  c.rope_scaling.mscale_all_dim = 0.0;
  EXPECT_NEAR(c.rope_attention_factor(), 1.36888795, 1e-8);
}

TEST(Config, MissingMscalesMeanOneAndZero) {
  const auto c = parse_config(edited("\"mscale\": 1.0,\n    \"mscale_all_dim\": 1.0", "\"x\": 0"));
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->rope_scaling.mscale, 1.0);
  EXPECT_EQ(c->rope_scaling.mscale_all_dim, 0.0);
}

TEST(Config, AcceptsTheSpellingsOfRopeParameters) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"rope_scaling\": {", "\"rope_parameters\": {\"rope_theta\": 500,"},
           {"\"type\": \"yarn\",\n", ""},
           {"\"rope_type\": \"yarn\",\n", ""}}) {
    const auto c = parse_config(edited(from, to));
    ASSERT_TRUE(c.ok()) << c.status().message();
    EXPECT_TRUE(c->rope_scaling.yarn);
    EXPECT_EQ(c->rope_scaling.factor, 4.0);
    EXPECT_EQ(c->rope_theta, from.starts_with("\"rope_scaling") ? 500.0 : 10000.0);
  }
}

TEST(Config, TakesModelTypeOrArchitectureWhenTheOtherIsMissing) {
  EXPECT_TRUE(error_of(edited("\"model_type\": \"deepseek_v3\",", "")).ok());
  EXPECT_TRUE(
      error_of(edited("\"architectures\": [\n    \"DeepseekV3ForCausalLM\"\n  ],", "")).ok());
}

TEST(Config, EosMayBeAList) {
  const auto c = parse_config(edited("\"eos_token_id\": 1", "\"eos_token_id\": [1, 7]"));
  ASSERT_TRUE(c.ok());
  EXPECT_THAT(c->eos_token_ids, ElementsAre(1, 7));
}

struct BadConfig {
  const char* from;
  const char* to;
  StatusCode code;
  const char* message;
};

class RefusedConfig : public testing::TestWithParam<BadConfig> {};

TEST_P(RefusedConfig, NamesKeyFoundAndExpected) {
  const BadConfig& bad = GetParam();

  const Status status = error_of(edited(bad.from, bad.to));

  EXPECT_EQ(status.code(), bad.code);
  EXPECT_THAT(status.message(), HasSubstr(bad.message));
}

INSTANTIATE_TEST_SUITE_P(
    Values,
    RefusedConfig,
    testing::Values(
        BadConfig{"\"hidden_size\": 64,", "", StatusCode::kCorrupt,
                  "hidden_size is missing, expected an integer from 1 to 65536"},
        BadConfig{"\"hidden_size\": 64", "\"hidden_size\": 70000", StatusCode::kCorrupt,
                  "hidden_size is 70000, expected an integer from 1 to 65536"},
        BadConfig{"\"hidden_size\": 64", "\"hidden_size\": 64.0", StatusCode::kCorrupt,
                  "hidden_size is 64, expected an integer"},
        BadConfig{"\"hidden_size\": 64", "\"hidden_size\": \"64\"", StatusCode::kCorrupt,
                  "hidden_size is \"64\", expected an integer"},
        BadConfig{"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1025", StatusCode::kCorrupt,
                  "num_hidden_layers is 1025"},
        BadConfig{"\"num_attention_heads\": 4", "\"num_attention_heads\": 0", StatusCode::kCorrupt,
                  "num_attention_heads is 0"},
        BadConfig{"\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2", StatusCode::kCorrupt,
                  "num_key_value_heads is 2, expected 4"},
        BadConfig{"\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 15", StatusCode::kCorrupt,
                  "qk_rope_head_dim is 15, expected an even number"},
        BadConfig{"\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 9", StatusCode::kCorrupt,
                  "num_experts_per_tok is 9, expected at most 8"},
        BadConfig{"\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 5", StatusCode::kCorrupt,
                  "num_experts_per_tok is 5, expected at most 4"},
        BadConfig{"\"n_group\": 4", "\"n_group\": 3", StatusCode::kCorrupt,
                  "n_group is 3, expected a divisor of 8"},
        BadConfig{"\"n_group\": 4", "\"n_group\": 8", StatusCode::kCorrupt,
                  "num_experts_per_tok is 3, expected at most 2"},
        BadConfig{"\"topk_group\": 2", "\"topk_group\": 5", StatusCode::kCorrupt,
                  "topk_group is 5, expected at most 4"},
        BadConfig{"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 4",
                  StatusCode::kCorrupt, "first_k_dense_replace is 4, expected at most 3"},
        BadConfig{"\"n_routed_experts\": 8", "\"n_routed_experts\": 5000", StatusCode::kCorrupt,
                  "n_routed_experts is 5000"},
        BadConfig{"\"n_routed_experts\": 8", "\"n_routed_experts\": 2049", StatusCode::kCorrupt,
                  "n_routed_experts is 2049, expected an integer from 1 to 2048"},
        BadConfig{"\"max_position_embeddings\": 512", "\"max_position_embeddings\": 16777217",
                  StatusCode::kCorrupt, "max_position_embeddings is 16777217"},
        BadConfig{"\"eos_token_id\": 1", "\"eos_token_id\": [0, 1, -1]", StatusCode::kCorrupt,
                  "eos_token_id[2] is -1, expected"},
        BadConfig{"\"vocab_size\": 4096", "\"vocab_size\": 2000000", StatusCode::kCorrupt,
                  "vocab_size is 2000000"},
        BadConfig{"\"eos_token_id\": 1", "\"eos_token_id\": 4096", StatusCode::kCorrupt,
                  "eos_token_id is 4096"},
        BadConfig{"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0", StatusCode::kCorrupt,
                  "rms_norm_eps is 0"},
        BadConfig{"\"factor\": 4", "\"factor\": 0.5", StatusCode::kCorrupt,
                  "rope_scaling: factor is 0.5"},
        BadConfig{"\"rope_type\": \"yarn\"", "\"rope_type\": \"linear\"", StatusCode::kCorrupt,
                  "type is \"yarn\", expected \"linear\""},
        BadConfig{"\"type\": \"yarn\",\n    \"rope_type\": \"yarn\"", "\"type\": \"linear\"",
                  StatusCode::kUnsupported, "rope_type is \"linear\", expected yarn or default"},
        BadConfig{"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", StatusCode::kUnsupported,
                  "hidden_act is \"gelu\", expected \"silu\""},
        BadConfig{"\"attention_bias\": false", "\"attention_bias\": true", StatusCode::kUnsupported,
                  "attention_bias is true, expected false"},
        BadConfig{"\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"softmax\"",
                  StatusCode::kUnsupported, "scoring_func is \"softmax\", expected \"sigmoid\""},
        BadConfig{"\"topk_method\": \"noaux_tc\"", "\"topk_method\": \"best\"",
                  StatusCode::kUnsupported, "topk_method is \"best\""},
        BadConfig{"\"norm_topk_prob\": true", "\"norm_topk_prob\": 1", StatusCode::kCorrupt,
                  "norm_topk_prob is 1, expected true or false"},
        BadConfig{"\"model_type\": \"deepseek_v3\"", "\"model_type\": \"llama\"",
                  StatusCode::kUnsupported,
                  "model_type is \"llama\", expected one of deepseek, deepseek_v2, deepseek_v3"},
        BadConfig{"\"model_type\": \"deepseek_v3\"", "\"model_type\": \"deepseek_v41\"",
                  StatusCode::kUnsupported, "\"deepseek_v41\" are not supported yet"},
        BadConfig{"\"model_type\": \"deepseek_v3\"", "\"model_type\": \"deepseek_v2\"",
                  StatusCode::kUnsupported, "architectures[0] is \"DeepseekV3ForCausalLM\""}));

// The reference's greedy choice looks at no groups.
TEST(Config, GreedyTakesGroupsThatDivideNothing) {
  ModelConfig c = find_preset("deepseek-v2-lite")->config;
  c.n_routed_experts = 10;
  c.n_group = 3;
  c.topk_group = 4;
  EXPECT_TRUE(validate_config(c, "x").ok());
  c.topk_method = TopkMethod::kGroupLimitedGreedy;
  EXPECT_THAT(validate_config(c, "x").message(),
              HasSubstr("n_group is 3, expected a divisor of 10"));
}

TEST(Config, RefusesMoreTensorsThanACheckpointHolds) {
  ModelConfig c = find_preset("deepseek-v3")->config;
  c.n_routed_experts = 2048;
  c.num_hidden_layers = 162;
  EXPECT_TRUE(validate_config(c, "x").ok());
  c.num_hidden_layers = 163;
  EXPECT_THAT(validate_config(c, "x").message(),
              HasSubstr("n_routed_experts is 2048, expected at most 2044 for 163 layers"));
}

TEST(Config, RefusesARotaryTableBeyondOneGibibyte) {
  ModelConfig c = find_preset("deepseek-v3")->config;
  c.max_position_embeddings = 1 << 22;
  EXPECT_TRUE(validate_config(c, "x").ok());
  c.max_position_embeddings = (1 << 22) + 1;
  EXPECT_THAT(validate_config(c, "x").message(),
              HasSubstr("max_position_embeddings is 4194305, expected at most 4194304"));
}

TEST(Config, RefusesADocumentThatIsNoObject) {
  EXPECT_EQ(error_of("[]").code(), StatusCode::kCorrupt);
  EXPECT_EQ(error_of("").code(), StatusCode::kCorrupt);
}

TEST(GenerationConfigFile, ReadsDefaultsOfACheckpoint) {
  const auto g = parse_generation_config(read_fixture("micro-v3/generation_config.json"));
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_EQ(g->temperature, 0.8);
  EXPECT_EQ(g->top_p, 0.95);
  EXPECT_FALSE(g->top_k.has_value());
  EXPECT_THAT(g->eos_token_ids, ElementsAre(1));
}

TEST(GenerationConfigFile, TakesWhatTheSamplerTakesAndNoMore) {
  EXPECT_TRUE(parse_generation_config("{\"temperature\": 2, \"repetition_penalty\": 10}").ok());
  EXPECT_FALSE(parse_generation_config("{\"temperature\": 2.5}").ok());
  EXPECT_FALSE(parse_generation_config("{\"top_p\": 0}").ok());
  EXPECT_FALSE(parse_generation_config("{\"repetition_penalty\": 10.5}").ok());
}

TEST(GenerationConfigFile, RefusesValuesOutOfRange) {
  const auto g = parse_generation_config("{\"top_p\": 1.5}");
  ASSERT_FALSE(g.ok());
  EXPECT_THAT(g.status().message(), HasSubstr("top_p is 1.5, expected a number from 1e-06 to 1"));
}

TEST(FirstLayers, CutWhatIsListedByLayerAndKeepTheDraftLayers) {
  const ModelConfig flash = first_layers(find_preset("deepseek-v4-flash")->config, 3);
  const ModelConfig v3 = first_layers(find_preset("deepseek-v3")->config, 2);

  EXPECT_EQ(flash.num_hidden_layers, 3);
  EXPECT_EQ(flash.num_hash_layers, 3);
  EXPECT_THAT(flash.compress_ratios,
              testing::ElementsAre(CompressRatio::kNone, CompressRatio::kNone,
                                   CompressRatio::kSparse, CompressRatio::kNone));
  EXPECT_TRUE(validate_config(flash, "flash").ok());
  EXPECT_EQ(v3.first_k_dense_replace, 2);
}

}  // namespace
}  // namespace fathom
