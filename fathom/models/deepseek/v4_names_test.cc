#include "fathom/models/deepseek/v4_names.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

// deepseek-v4 notes, table of tensors: DeepSeek's names and those of transformers.
TEST(V4Names, AreThoseOfTransformers) {
  const std::pair<const char*, const char*> names[] = {
      {"embed.weight", "model.embed_tokens.weight"},
      {"head.weight", "lm_head.weight"},
      {"norm.weight", "model.norm.weight"},
      {"hc_head_fn", "model.hc_head.hc_fn"},
      {"layers.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"layers.12.hc_attn_base", "model.layers.12.attn_hc.base"},
      {"layers.12.attn.attn_sink", "model.layers.12.self_attn.sinks"},
      {"layers.3.attn.wq_a.weight", "model.layers.3.self_attn.q_a_proj.weight"},
      {"layers.3.attn.compressor.ape", "model.layers.3.self_attn.compressor.position_bias"},
      {"layers.3.attn.indexer.compressor.wkv.weight",
       "model.layers.3.self_attn.compressor.indexer.kv_proj.weight"},
      {"layers.3.ffn.gate.weight", "model.layers.3.mlp.gate.weight"},
      {"layers.3.ffn.gate.bias", "model.layers.3.mlp.gate.e_score_correction_bias"},
      {"layers.3.ffn.gate.tid2eid", "model.layers.3.mlp.gate.tid2eid"},
      {"layers.3.ffn.experts.255.w2.weight", "model.layers.3.mlp.experts.255.down_proj.weight"},
      {"layers.3.ffn.shared_experts.w3.weight", "model.layers.3.mlp.shared_experts.up_proj.weight"},
  };
  for (const auto& [official, transformers] : names)
    EXPECT_EQ(transformers_name(official), transformers);
}

}  // namespace
}  // namespace fathom
