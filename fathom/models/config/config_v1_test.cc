#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/models/config/config.h"
#include "fathom/models/config/presets.h"

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// config.json of deepseek-ai/deepseek-moe-16b-base, less what says nothing of the model.
constexpr std::string_view kPublished = R"({
  "architectures": ["DeepseekForCausalLM"],
  "attention_bias": false,
  "aux_loss_alpha": 0.001,
  "bos_token_id": 100000,
  "eos_token_id": 100001,
  "first_k_dense_replace": 1,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "intermediate_size": 10944,
  "max_position_embeddings": 4096,
  "model_type": "deepseek",
  "moe_intermediate_size": 1408,
  "moe_layer_freq": 1,
  "n_routed_experts": 64,
  "n_shared_experts": 2,
  "norm_topk_prob": false,
  "num_attention_heads": 16,
  "num_experts_per_tok": 6,
  "num_hidden_layers": 28,
  "num_key_value_heads": 16,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 10000,
  "scoring_func": "softmax",
  "seq_aux": true,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "use_cache": true,
  "vocab_size": 102400
})";

Result<ModelConfig> edited(std::string_view from, std::string_view to) {
  std::string text(kPublished);
  const size_t at = text.find(from);
  FATHOM_CHECK(at != std::string::npos, std::string(from));
  return parse_config(text.replace(at, from.size(), to));
}

std::string refusal(std::string_view from, std::string_view to) {
  const auto config = edited(from, to);
  return config.ok() ? "none" : config.status().message();
}

TEST(ConfigV1, ReadsThePublishedFileAsThePreset) {
  const auto read = parse_config(kPublished);
  ASSERT_TRUE(read.ok()) << read.status().message();
  const ModelConfig preset = find_preset("deepseek-moe-16b")->config;
  for (const ModelConfig& c : {*read, preset}) {
    EXPECT_TRUE(c.is_v1());
    EXPECT_EQ(c.model_type, "deepseek");
    EXPECT_EQ(c.architecture, "DeepseekForCausalLM");
    EXPECT_EQ(c.num_hidden_layers, 28);
    EXPECT_EQ(c.num_key_value_heads, 16);
    EXPECT_EQ(c.qk_head_dim(), 128);
    EXPECT_EQ(c.v_head_dim, 128);
    EXPECT_EQ(c.intermediate_size, 10944);
    EXPECT_EQ(c.n_routed_experts, 64);
    EXPECT_EQ(c.n_shared_experts, 2);
    EXPECT_EQ(c.num_experts_per_tok, 6);
    EXPECT_EQ(c.first_k_dense_replace, 1);
    EXPECT_EQ(c.topk_method, TopkMethod::kGreedy);
    EXPECT_FALSE(c.norm_topk_prob);
    EXPECT_EQ(c.routed_scaling_factor, 1.0);
    EXPECT_FALSE(c.rope_interleave);
    EXPECT_FALSE(c.rope_scaling.yarn);
    EXPECT_EQ(c.max_position_embeddings, 4096);
    EXPECT_EQ(c.num_nextn_predict_layers, 0);
    EXPECT_EQ(c.bos_token_id, 100000);
    EXPECT_THAT(c.eos_token_ids, ElementsAre(100001));
    EXPECT_NEAR(c.softmax_scale(), 0.0883883476, 1e-10);
    EXPECT_EQ(c.symbols().find("D"), 128);
    EXPECT_FALSE(c.symbols().find("Lkv").has_value());
  }
}

TEST(ConfigV1, HeadsOfKeysMayBeSharedOrLeftOut) {
  EXPECT_EQ(
      edited("\"num_key_value_heads\": 16", "\"num_key_value_heads\": 4")->num_key_value_heads, 4);
  EXPECT_EQ(edited("\"num_key_value_heads\": 16", "\"x\": 0")->num_key_value_heads, 16);
  EXPECT_THAT(
      refusal("\"num_key_value_heads\": 16", "\"num_key_value_heads\": 5"),
      HasSubstr("num_key_value_heads is 5, expected a divisor of 16 (num_attention_heads)"));
}

TEST(ConfigV1, NullsAreAbsent) {
  const auto dense = edited("\"n_routed_experts\": 64", "\"n_routed_experts\": null");
  ASSERT_TRUE(dense.ok()) << dense.status().message();
  EXPECT_FALSE(dense->is_moe_layer(1));
  EXPECT_EQ(edited("\"n_shared_experts\": 2", "\"n_shared_experts\": null")->n_shared_experts, 0);
  EXPECT_TRUE(edited("\"norm_topk_prob\": false", "\"norm_topk_prob\": true")->norm_topk_prob);
}

TEST(ConfigV1, SizesThatContradictEachOtherAreNamed) {
  EXPECT_THAT(refusal("\"num_attention_heads\": 16", "\"num_attention_heads\": 12"),
              HasSubstr("num_attention_heads is 12, expected a divisor of 2048 (hidden_size)"));
  EXPECT_THAT(refusal("\"hidden_size\": 2048", "\"hidden_size\": 2064"),
              HasSubstr("hidden_size is 2064, expected an even number of channels a head"));
  EXPECT_THAT(refusal("\"use_cache\": true", "\"head_dim\": 64"),
              HasSubstr("head_dim is 64, expected 128 (hidden_size / num_attention_heads)"));
  EXPECT_THAT(refusal("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 16777216"),
              HasSubstr("for a head dimension of 128"));
}

TEST(ConfigV1, RotationIsStretchedLinearlyOrNotAtAll) {
  for (const char* key : {"type", "rope_type"}) {
    const auto of_type = [key](std::string_view type, std::string_view factor) {
      return str_cat("\"rope_scaling\": {\"", key, "\": \"", type, "\", \"factor\": ", factor, "}");
    };
    const auto linear = edited("\"rope_scaling\": null", of_type("linear", "4.0"));
    ASSERT_TRUE(linear.ok()) << linear.status().message();
    EXPECT_FALSE(linear->rope_scaling.yarn);
    EXPECT_EQ(linear->rope_scaling.factor, 4.0);
    EXPECT_EQ(linear->softmax_scale(), parse_config(kPublished)->softmax_scale());
    EXPECT_THAT(refusal("\"rope_scaling\": null", of_type("linear", "0.5")),
                HasSubstr("rope_scaling: factor is 0.5, expected a number from 1 to 1e+06"));
    for (const char* type : {"dynamic", "yarn"}) {
      EXPECT_THAT(
          refusal("\"rope_scaling\": null", of_type(type, "4.0")),
          HasSubstr(str_cat("rope_scaling: the type is \"", type, "\", expected linear or null")));
    }
  }
  EXPECT_THAT(refusal("\"rope_scaling\": null", R"("rope_scaling": {"type": "linear"})"),
              HasSubstr("rope_scaling: factor"));
  EXPECT_EQ(refusal("\"rope_scaling\": null",
                    R"("rope_parameters": {"rope_type": "default", "rope_theta": 500})"),
            "none");
}

TEST(ConfigV1, WhatThePublishedCodeDoesNotKnowIsRefused) {
  EXPECT_THAT(refusal("\"attention_bias\": false", "\"attention_bias\": true"),
              HasSubstr("attention_bias is true, expected false: no published checkpoint of this "
                        "family"));
  EXPECT_THAT(refusal("\"scoring_func\": \"softmax\"", "\"scoring_func\": \"sigmoid\""),
              HasSubstr("scoring_func is \"sigmoid\", expected \"softmax\""));
  EXPECT_THAT(refusal("\"use_cache\": true", "\"topk_method\": \"noaux_tc\""),
              HasSubstr("topk_method is \"noaux_tc\", expected \"greedy\""));
  EXPECT_THAT(refusal("\"use_cache\": true", "\"routed_scaling_factor\": 16.0"),
              HasSubstr("routed_scaling_factor is 16, expected 1"));
  EXPECT_THAT(refusal("\"use_cache\": true", "\"rope_interleave\": true"),
              HasSubstr("rope_interleave is true, expected false"));
  EXPECT_THAT(refusal("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\""),
              HasSubstr("hidden_act is \"gelu\", expected \"silu\""));
}

TEST(ConfigV1, FirstLayersKeepTheRest) {
  const ModelConfig c = first_layers(find_preset("deepseek-moe-16b")->config, 2);
  EXPECT_EQ(c.num_hidden_layers, 2);
  EXPECT_TRUE(validate_config(c, "two layers").ok());
}

}  // namespace
}  // namespace fathom
