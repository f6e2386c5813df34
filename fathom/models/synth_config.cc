#include "fathom/models/synth_config.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fathom {
namespace {

Json integer(int64_t value) {
  return Json::integer(value);
}

// Heads of keys and values, as many as those of queries or fewer; all channels are rotated.
Json v1_config(const SynthOptions& o) {
  return Json::object({
      {"architectures", Json::array({Json::string("DeepseekForCausalLM")})},
      {"model_type", Json::string("deepseek")},
      {"hidden_size", integer(o.hidden)},
      {"num_hidden_layers", integer(o.layers)},
      {"num_attention_heads", integer(4)},
      {"num_key_value_heads", integer(o.kv_heads)},
      {"intermediate_size", integer(2 * o.hidden)},
      {"moe_intermediate_size", integer(128)},
      {"first_k_dense_replace", integer(1)},
      {"moe_layer_freq", integer(1)},
      {"n_routed_experts", integer(o.experts)},
      {"n_shared_experts", integer(2)},
      {"num_experts_per_tok", integer(std::min<int64_t>(o.experts / 2, 4))},
      {"scoring_func", Json::string("softmax")},
      {"norm_topk_prob", Json::boolean(false)},
      {"vocab_size", integer(kSynthVocab)},
      {"bos_token_id", integer(0)},
      {"eos_token_id", integer(1)},
      {"max_position_embeddings", integer(4096)},
      {"rope_theta", integer(10000)},
      {"rope_scaling", Json{}},
      {"rms_norm_eps", Json::number(1e-6)},
      {"hidden_act", Json::string("silu")},
      {"attention_bias", Json::boolean(false)},
      {"tie_word_embeddings", Json::boolean(false)},
      {"torch_dtype", Json::string("bfloat16")},
  });
}

// V2 and V3: latent attention, and the indexer of V3.2.
Json mla_config(const SynthOptions& o) {
  const bool v32 = o.version == "v3.2";
  const bool v2 = o.version == "v2" || o.version == "v2-lite";
  const bool lite = o.version == "v2-lite";
  std::vector<JsonMember> m{
      {"architectures", Json::array({Json::string(v2    ? "DeepseekV2ForCausalLM"
                                                  : v32 ? "DeepseekV32ForCausalLM"
                                                        : "DeepseekV3ForCausalLM")})},
      {"model_type", Json::string(v2    ? "deepseek_v2"
                                  : v32 ? "deepseek_v32"
                                        : "deepseek_v3")},
      {"hidden_size", integer(o.hidden)},
      {"num_hidden_layers", integer(o.layers)},
      {"num_attention_heads", integer(4)},
      {"num_key_value_heads", integer(4)},
      {"q_lora_rank", lite ? Json{} : integer(128)},
      {"kv_lora_rank", integer(v32 ? 128 : 64)},  // rows in FP8 have a scale for 128 channels
      {"qk_nope_head_dim", integer(32)},
      {"qk_rope_head_dim", integer(32)},
      {"v_head_dim", integer(32)},
      {"intermediate_size", integer(2 * o.hidden)},
      {"moe_intermediate_size", integer(128)},
      {"first_k_dense_replace", integer(1)},
      {"moe_layer_freq", integer(1)},
      {"n_routed_experts", integer(o.experts)},
      {"n_shared_experts", integer(v2 ? 2 : 1)},
      {"num_experts_per_tok", integer(std::min<int64_t>(o.experts / 2, 4))},
      {"n_group", integer(lite ? 1 : 4)},
      {"topk_group", integer(lite ? 1 : 2)},
      {"topk_method", Json::string(lite ? "greedy"
                                   : v2 ? "group_limited_greedy"
                                        : "noaux_tc")},
      {"scoring_func", Json::string(v2 ? "softmax" : "sigmoid")},
      {"norm_topk_prob", Json::boolean(!v2)},
      {"routed_scaling_factor", Json::number(lite ? 1.0
                                             : v2 ? 16.0
                                                  : 2.5)},
      {"vocab_size", integer(kSynthVocab)},
      {"bos_token_id", integer(0)},
      {"eos_token_id", integer(1)},
      {"max_position_embeddings", integer(4096)},
      {"rope_theta", integer(10000)},
      {"rope_scaling", Json::object({{"type", Json::string("yarn")},
                                     {"factor", integer(4)},
                                     {"original_max_position_embeddings", integer(1024)},
                                     {"beta_fast", integer(32)},
                                     {"beta_slow", integer(1)},
                                     {"mscale", Json::number(v2 ? 0.707 : 1.0)},
                                     {"mscale_all_dim", Json::number(v2 ? 0.707 : 1.0)}})},
      {"rms_norm_eps", Json::number(1e-6)},
      {"hidden_act", Json::string("silu")},
      {"attention_bias", Json::boolean(false)},
      {"tie_word_embeddings", Json::boolean(false)},
      {"torch_dtype", Json::string("bfloat16")},
  };
  if (v32) {
    m.insert(m.end(), {{"index_n_heads", integer(4)},
                       {"index_head_dim", integer(64)},
                       {"index_topk", integer(16)}});
  }
  return Json::object(std::move(m));
}

// Window, chosen rows and every row in turn, as in V4-Flash; the first two layers choose experts by
// token id.
Json v4_config(const SynthOptions& o) {
  std::vector<Json> ratios;
  for (int64_t i = 0; i < o.layers; ++i)
    ratios.push_back(integer(i == 0 ? 0 : i % 2 == 1 ? 4 : 128));
  return Json::object({
      {"architectures", Json::array({Json::string("DeepseekV4ForCausalLM")})},
      {"model_type", Json::string("deepseek_v4")},
      {"hidden_size", integer(o.hidden)},
      {"num_hidden_layers", integer(o.layers)},
      {"num_nextn_predict_layers", integer(0)},
      {"num_attention_heads", integer(4)},
      {"num_key_value_heads", integer(1)},
      {"head_dim", integer(128)},
      {"qk_rope_head_dim", integer(64)},
      {"q_lora_rank", integer(128)},
      {"o_groups", integer(2)},
      {"o_lora_rank", integer(128)},
      {"sliding_window", integer(32)},
      {"compress_ratios", Json::array(std::move(ratios))},
      {"compress_rope_theta", integer(160000)},
      {"index_n_heads", integer(4)},
      {"index_head_dim", integer(64)},
      {"index_topk", integer(16)},
      {"hc_mult", integer(4)},
      {"hc_sinkhorn_iters", integer(20)},
      {"hc_eps", Json::number(1e-6)},
      {"n_routed_experts", integer(o.experts)},
      {"n_shared_experts", integer(1)},
      {"num_experts_per_tok", integer(std::min<int64_t>(o.experts / 2, 4))},
      {"moe_intermediate_size", integer(128)},
      {"num_hash_layers", integer(2)},
      {"scoring_func", Json::string("sqrtsoftplus")},
      {"topk_method", Json::string("noaux_tc")},
      {"norm_topk_prob", Json::boolean(true)},
      {"routed_scaling_factor", Json::number(1.5)},
      {"swiglu_limit", Json::number(10.0)},
      {"vocab_size", integer(kSynthVocab)},
      {"bos_token_id", integer(0)},
      {"eos_token_id", integer(1)},
      {"max_position_embeddings", integer(4096)},
      {"rope_theta", integer(10000)},
      {"rope_scaling", Json::object({{"type", Json::string("yarn")},
                                     {"factor", integer(4)},
                                     {"original_max_position_embeddings", integer(1024)},
                                     {"beta_fast", integer(32)},
                                     {"beta_slow", integer(1)}})},
      {"rms_norm_eps", Json::number(1e-6)},
      {"hidden_act", Json::string("silu")},
      {"attention_bias", Json::boolean(false)},
      {"tie_word_embeddings", Json::boolean(false)},
      {"torch_dtype", Json::string("bfloat16")},
  });
}

}  // namespace

Json synth_config(const SynthOptions& options) {
  if (options.version == "v1") return v1_config(options);
  return options.version == "v4" ? v4_config(options) : mla_config(options);
}

}  // namespace fathom
