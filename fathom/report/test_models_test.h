// Models for the tests of this module: the built-in ones without weights, and a small one with.
#pragma once

#include <memory>
#include <string_view>

#include "fathom/base/check.h"
#include "fathom/models/registry.h"

namespace fathom {

inline std::unique_ptr<Model> dry_model(std::string_view preset, const ModelOptions& options = {}) {
  OpenOptions open;
  open.model = options;
  open.weights = WeightOrigin::kNone;
  auto model = open_model(ModelSource::describe(find_preset(preset).value()), {}, open);
  FATHOM_CHECK(model.ok(), model.status().message());
  return std::move(model).value();
}

/// Two layers, the second with experts, and a draft layer.
inline Preset small_preset() {
  Preset preset = find_preset("deepseek-v3").value();
  ModelConfig& c = preset.config;
  c.hidden_size = 128;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.q_lora_rank = 64;
  c.kv_lora_rank = 64;
  c.qk_nope_head_dim = 32;
  c.qk_rope_head_dim = 16;
  c.v_head_dim = 32;
  c.intermediate_size = 256;
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 64;
  c.first_k_dense_replace = 1;
  c.n_group = 2;
  c.topk_group = 1;
  c.vocab_size = 256;
  c.max_position_embeddings = 512;
  preset.formats = preset_formats("bf16", c).value();
  return preset;
}

}  // namespace fathom
