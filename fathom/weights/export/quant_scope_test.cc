#include "fathom/weights/export/quant_scope.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

using enum QuantScope;

// The narrowest scope that takes the weight; "none" where no scope does.
std::string scope_of(const std::string& weight) {
  if (in_quant_scope(weight, kExperts)) return "experts";
  if (in_quant_scope(weight, kMlpO)) return "mlp-o";
  if (in_quant_scope(weight, kAllLinear)) return "all-linear";
  return in_quant_scope(weight, kCompressors) ? "compressors" : "none";
}

TEST(QuantScope, OfV4TakesLinearsInBothNamings) {
  const std::tuple<const char*, const char*, const char*> weights[] = {
      {"ffn.experts.7.w1", "mlp.experts.7.gate_proj", "experts"},
      {"ffn.experts.7.w2", "mlp.experts.7.down_proj", "experts"},
      {"ffn.experts.7.w3", "mlp.experts.7.up_proj", "experts"},
      {"ffn.shared_experts.w2", "mlp.shared_experts.down_proj", "mlp-o"},
      {"attn.wo_b", "self_attn.o_b_proj", "mlp-o"},
      {"attn.wq_a", "self_attn.q_a_proj", "all-linear"},
      {"attn.wq_b", "self_attn.q_b_proj", "all-linear"},
      {"attn.wkv", "self_attn.kv_proj", "all-linear"},
      {"attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj", "all-linear"},
      {"attn.wo_a", "self_attn.o_a_proj", "none"},
      {"attn.compressor.wkv", "self_attn.compressor.kv_proj", "compressors"},
      {"attn.compressor.wgate", "self_attn.compressor.gate_proj", "compressors"},
      {"attn.indexer.compressor.wkv", "self_attn.compressor.indexer.kv_proj", "compressors"},
      {"attn.indexer.compressor.wgate", "self_attn.compressor.indexer.gate_proj", "compressors"},
      {"attn.compressor.norm", "self_attn.compressor.kv_norm", "none"},
      {"attn.indexer.weights_proj", "self_attn.compressor.indexer.scorer.weights_proj", "none"},
      {"ffn.gate", "mlp.gate", "none"},
      {"attn_norm", "input_layernorm", "none"},
  };
  for (const auto& [official, transformers, scope] : weights) {
    EXPECT_EQ(scope_of(std::string("layers.2.") + official + ".weight"), scope) << official;
    EXPECT_EQ(scope_of(std::string("model.layers.2.") + transformers + ".weight"), scope)
        << transformers;
  }
  EXPECT_EQ(scope_of("embed.weight"), "none");
  EXPECT_EQ(scope_of("head.weight"), "none");
  EXPECT_EQ(scope_of("layers.2.attn.wq_a.scale"), "none");
}

TEST(QuantScope, OfV1TakesEveryProjectionOfTheAttention) {
  const std::string p = "model.layers.4.self_attn.";

  for (const char* part : {"q_proj", "k_proj", "v_proj"})
    EXPECT_EQ(scope_of(p + part + ".weight"), "all-linear") << part;
  EXPECT_EQ(scope_of(p + "o_proj.weight"), "mlp-o");
  EXPECT_EQ(fused_partner(p + "k_proj.weight"), p + "v_proj.weight");
  EXPECT_EQ(fused_partner(p + "v_proj.weight"), p + "k_proj.weight");
}

TEST(QuantScope, OfV32TakesTheIndexersProjections) {
  const std::string p = "model.layers.4.self_attn.";

  EXPECT_EQ(scope_of(p + "indexer.wq_b.weight"), "all-linear");
  EXPECT_EQ(scope_of(p + "indexer.wk.weight"), "all-linear");
  EXPECT_EQ(scope_of(p + "indexer.weights_proj.weight"), "none");
  EXPECT_EQ(scope_of(p + "indexer.k_norm.weight"), "none");
  EXPECT_EQ(scope_of(p + "kv_a_proj_with_mqa.weight"), "all-linear");
  EXPECT_EQ(scope_of(p + "o_proj.weight"), "mlp-o");
}

TEST(QuantScope, FusedPartnerIsTheOtherHalfOfAGatedProduct) {
  EXPECT_EQ(fused_partner("layers.0.ffn.experts.3.w1.weight"), "layers.0.ffn.experts.3.w3.weight");
  EXPECT_EQ(fused_partner("layers.0.ffn.experts.3.w3.weight"), "layers.0.ffn.experts.3.w1.weight");
  EXPECT_EQ(fused_partner("model.layers.0.mlp.gate_proj.weight"),
            "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(fused_partner("layers.0.ffn.experts.3.w2.weight"), "");
}

TEST(QuantScope, UnknownNameListsTheKnownOnes) {
  EXPECT_EQ(parse_quant_scope("all").status().message(),
            "--scope is 'all'; known are experts, mlp-o, all-linear and compressors");
}

}  // namespace
}  // namespace fathom
