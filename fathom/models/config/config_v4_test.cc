#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>

#include "fathom/models/config/config.h"

namespace fathom {
namespace {

using enum CompressRatio;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kRatioList =
    "\"compress_ratios\": [\n    0,\n    4,\n    128,\n    4,\n    128\n  ]";
constexpr const char* kHashLayers = "\"num_hash_layers\": 2";
constexpr const char* kNoDraft = "\"num_nextn_predict_layers\": 0";

struct Edit {
  const char* from;
  const char* to;
};

// micro-v4's config.json with each `from` replaced by `to`.
std::string edited(std::initializer_list<Edit> edits) {
  std::ifstream in(FATHOM_SOURCE_DIR "/tests/golden/micro-v4/config.json");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  for (const Edit& e : edits) {
    const size_t at = text.find(e.from);
    FATHOM_CHECK(at != std::string::npos, e.from);
    text.replace(at, std::string_view(e.from).size(), e.to);
  }
  return text;
}

ModelConfig read(std::initializer_list<Edit> edits) {
  auto config = parse_config(edited(edits));
  FATHOM_CHECK(config.ok(), config.ok() ? "" : config.status().message());
  return std::move(config).value();
}

TEST(ConfigV4, ReadsDeepSeeksKeys) {
  const ModelConfig c = read({});
  EXPECT_TRUE(c.is_v4());
  EXPECT_FALSE(c.has_indexer());
  EXPECT_THAT(c.compress_ratios, ElementsAre(kNone, kSparse, kHeavy, kSparse, kHeavy));
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.qk_nope_head_dim, 16);
  EXPECT_EQ(c.sliding_window, 32);
  EXPECT_EQ(c.o_groups, 2);
  EXPECT_EQ(c.o_lora_rank, 32);
  EXPECT_EQ(c.num_hash_layers, 2);
  EXPECT_EQ(c.hc_mult, 4);
  EXPECT_EQ(c.swiglu_limit, 10.0);
  EXPECT_EQ(c.topk_method, TopkMethod::kSqrtSoftplus);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.compress_rope_theta, 160000.0);
  EXPECT_TRUE(c.rope_scaling.yarn);
  EXPECT_EQ(c.rope_attention_factor(), 1.0);
}

TEST(ConfigV4, ReadsTheWordsOfTransformers) {
  const ModelConfig c = read(
      {{kRatioList,
        R"("layer_types": ["sliding_attention", "compressed_sparse_attention",
           "heavily_compressed_attention", "compressed_sparse_attention",
           "heavily_compressed_attention"])"},
       {kHashLayers, R"("mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe"])"},
       {"\"rope_scaling\": {\n    \"beta_fast\": 32,\n    \"beta_slow\": 1,\n    \"factor\": 4,\n"
        "    \"original_max_position_embeddings\": 128,\n    \"type\": \"yarn\",\n"
        "    \"rope_type\": \"yarn\"\n  }",
        R"("rope_parameters": {"main": {"rope_theta": 500, "rope_type": "default"},
           "compress": {"rope_theta": 7000, "rope_type": "yarn", "factor": 4,
                        "original_max_position_embeddings": 128, "attention_factor": 1.0}})"},
       {"\"compress_rope_theta\": 160000,", ""}});
  EXPECT_THAT(c.compress_ratios, ElementsAre(kNone, kSparse, kHeavy, kSparse, kHeavy));
  EXPECT_EQ(c.num_hash_layers, 2);
  EXPECT_EQ(c.rope_theta, 500.0);
  EXPECT_EQ(c.compress_rope_theta, 7000.0);
  EXPECT_EQ(c.rope_scaling.factor, 4.0);
}

// The words of transformers say nothing of draft layers, whose kind is known.
TEST(ConfigV4, DraftLayersHaveAWindowAlone) {
  EXPECT_THAT(read({{kRatioList, "\"compress_ratios\": [0, 4, 128, 4, 128, 0]"},
                    {kNoDraft, "\"num_nextn_predict_layers\": 1"}})
                  .compress_ratios,
              ElementsAre(kNone, kSparse, kHeavy, kSparse, kHeavy, kNone));
}

TEST(ConfigV4, ALaterDrafterLeavesTheLayersAsTheyAre) {
  const ModelConfig c =
      read({{kRatioList, "\"compress_ratios\": [0, 4, 128, 4, 128, 0, 0, 0]"},
            {kNoDraft, "\"num_nextn_predict_layers\": 1, \"dspark_block_size\": 7"}});
  EXPECT_EQ(c.num_nextn_predict_layers, 0);
  EXPECT_EQ(c.compress_ratios.size(), 5u);
}

struct Bad {
  const char* name;
  Edit edit;
  StatusCode code;
  const char* message;
};

class RefusedV4Config : public testing::TestWithParam<Bad> {};

TEST_P(RefusedV4Config, NamesKeyFoundAndExpected) {
  const Bad& bad = GetParam();
  const auto config = parse_config(edited({bad.edit}));
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), bad.code);
  EXPECT_THAT(config.status().message(), HasSubstr(bad.message));
}

INSTANTIATE_TEST_SUITE_P(
    Values,
    RefusedV4Config,
    testing::Values(Bad{"few_ratios",
                        {kRatioList, "\"compress_ratios\": [0, 4, 128, 4]"},
                        StatusCode::kCorrupt,
                        "compress_ratios is a list of 4, expected 5 entries"},
                    Bad{"no_ratios",
                        {kRatioList, "\"compress_ratios\": 4"},
                        StatusCode::kCorrupt,
                        "compress_ratios is no list, expected 5 entries"},
                    Bad{"other_ratio",
                        {kRatioList, "\"compress_ratios\": [0, 4, 64, 4, 128]"},
                        StatusCode::kCorrupt,
                        "compress_ratios[2] is 64, expected 0"},
                    Bad{"ratio_word",
                        {kRatioList, "\"compress_ratios\": [0, 4, \"128\", 4, 128]"},
                        StatusCode::kCorrupt,
                        "compress_ratios[2] is no integer"},
                    Bad{"other_layer_type",
                        {kRatioList,
                         "\"layer_types\": [\"full_attention\", \"x\", \"x\", \"x\", \"x\"]"},
                        StatusCode::kCorrupt,
                        "layer_types[0] is \"full_attention\""},
                    Bad{"hash_behind_moe",
                        {kHashLayers,
                         "\"mlp_layer_types\": [\"moe\", \"hash_moe\", \"moe\", \"moe\", \"moe\"]"},
                        StatusCode::kCorrupt,
                        "mlp_layer_types"},
                    Bad{"hash_layers",
                        {kHashLayers, "\"num_hash_layers\": 6"},
                        StatusCode::kCorrupt,
                        "num_hash_layers"},
                    Bad{"groups",
                        {"\"o_groups\": 2", "\"o_groups\": 3"},
                        StatusCode::kCorrupt,
                        "o_groups is 3, expected a divisor of 4"},
                    Bad{"rotary",
                        {"\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 32"},
                        StatusCode::kCorrupt,
                        "qk_rope_head_dim"},
                    Bad{"kv_heads",
                        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 2"},
                        StatusCode::kCorrupt,
                        "num_key_value_heads"},
                    Bad{"scoring",
                        {"\"sqrtsoftplus\"", "\"sigmoid\""},
                        StatusCode::kUnsupported,
                        "scoring_func is \"sigmoid\", expected \"sqrtsoftplus\""},
                    Bad{"draft_ratio",
                        {kNoDraft, "\"num_nextn_predict_layers\": 1"},
                        StatusCode::kCorrupt,
                        "compress_ratios is a list of 5, expected 6 entries"}),
    [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace fathom
