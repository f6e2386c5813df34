#include "fathom/models/deepseek/v4/v4_names.h"

namespace fathom {
namespace {

struct Rename {
  std::string_view from;
  std::string_view to;
};

// Of whole names.
constexpr Rename kModel[] = {
    {"embed.weight", "model.embed_tokens.weight"}, {"head.weight", "lm_head.weight"},
    {"norm.weight", "model.norm.weight"},          {"hc_head_fn", "model.hc_head.hc_fn"},
    {"hc_head_base", "model.hc_head.hc_base"},     {"hc_head_scale", "model.hc_head.hc_scale"},
};

// Of what follows "layers.N." or "mtp.N."; the first that fits is taken, what follows it stays.
constexpr Rename kLayer[] = {
    {"attn_norm.", "input_layernorm."},
    {"ffn_norm.", "post_attention_layernorm."},
    {"hc_attn_", "attn_hc."},
    {"hc_ffn_", "ffn_hc."},
    {"attn.attn_sink", "self_attn.sinks"},
    {"attn.wq_a.", "self_attn.q_a_proj."},
    {"attn.q_norm.", "self_attn.q_a_norm."},
    {"attn.wq_b.", "self_attn.q_b_proj."},
    {"attn.wkv.", "self_attn.kv_proj."},
    {"attn.kv_norm.", "self_attn.kv_norm."},
    {"attn.wo_a.", "self_attn.o_a_proj."},
    {"attn.wo_b.", "self_attn.o_b_proj."},
    {"attn.compressor.wkv.", "self_attn.compressor.kv_proj."},
    {"attn.compressor.wgate.", "self_attn.compressor.gate_proj."},
    {"attn.compressor.norm.", "self_attn.compressor.kv_norm."},
    {"attn.compressor.ape", "self_attn.compressor.position_bias"},
    {"attn.indexer.wq_b.", "self_attn.compressor.indexer.q_b_proj."},
    {"attn.indexer.weights_proj.", "self_attn.compressor.indexer.scorer.weights_proj."},
    {"attn.indexer.compressor.wkv.", "self_attn.compressor.indexer.kv_proj."},
    {"attn.indexer.compressor.wgate.", "self_attn.compressor.indexer.gate_proj."},
    {"attn.indexer.compressor.norm.", "self_attn.compressor.indexer.kv_norm."},
    {"attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"},
    {"hc_head_", "hc_head.hc_"},
    {"ffn.gate.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn.", "mlp."},
};

// Of matrices of experts, anywhere behind.
constexpr Rename kExpert[] = {
    {".w1.", ".gate_proj."}, {".w3.", ".up_proj."}, {".w2.", ".down_proj."}};

// Of names of transformers what its first releases called otherwise.
constexpr Rename kEarlier[] = {
    {".self_attn.q_a_norm.", ".self_attn.q_norm."},
    {".indexer.scorer.weights_proj.", ".indexer.weights_proj."},
};

}  // namespace

std::string transformers_name(std::string_view name) {
  for (const Rename& r : kModel) {
    if (name == r.from) return std::string(r.to);
  }
  const bool draft = name.starts_with("mtp.");
  if (!draft && !name.starts_with("layers.")) return std::string(name);
  const size_t dot = name.find('.', name.find('.') + 1);
  if (dot == std::string_view::npos) return std::string(name);
  std::string out = str_cat(draft ? "" : "model.", name.substr(0, dot + 1));
  const std::string_view rest = name.substr(dot + 1);
  std::string layer(rest);
  for (const Rename& r : kLayer) {
    if (!rest.starts_with(r.from)) continue;
    layer = str_cat(r.to, rest.substr(r.from.size()));
    break;
  }
  for (const Rename& r : kExpert) {
    const size_t at = layer.find(r.from);
    if (at != std::string::npos) layer.replace(at, r.from.size(), r.to);
  }
  return out + layer;
}

V4Names::V4Names(const WeightPlan& plan)
    : plan_(plan),
      transformers_(plan.is_stored(transformers_name("embed.weight"))),
      draft_transformers_(plan.is_stored(transformers_name("mtp.0.attn_norm.weight"))) {}

std::string V4Names::operator()(std::string_view name) const {
  if (name.starts_with("mtp.") ? !draft_transformers_ : !transformers_) return std::string(name);
  const std::string now = transformers_name(name);
  for (const Rename& r : kEarlier) {
    const size_t at = now.find(r.from);
    if (at == std::string::npos) continue;
    std::string earlier = now;
    earlier.replace(at, r.from.size(), r.to);
    if (!plan_.is_stored(now) && plan_.is_stored(earlier)) return earlier;
  }
  return now;
}

}  // namespace fathom
