// The configuration of a model: config.json, checked, with the paper's symbols.
//
//   H    hidden_size             E, K  routed experts, experts per token
//   Nh   num_attention_heads     I, Id expert and dense intermediate sizes
//   Lq   q_lora_rank             V     vocabulary
//   Lkv  kv_lora_rank            G     expert groups
//   Dn   qk_nope_head_dim        Dr    qk_rope_head_dim
//   Dq   Dn + Dr                 Dv    v_head_dim
//   Hi   index_n_heads           Di    index_head_dim        Kt    index_topk
//
// The first DeepSeek models have heads of keys and values of their own, D = H / Nh channels each:
//
//   Nk   num_key_value_heads     D     head dimension
//
// DeepSeek-V4 has a row of D channels a token in place of latents, Dn + Dr of them:
//
//   D    head_dim                n     hc_mult               W     sliding_window
//   Go   o_groups                Lo    o_lora_rank           Hg    Nh / Go
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/layers/attention/compress_ratio.h"
#include "fathom/weights/plan/weight_spec.h"

namespace fathom {

class Json;

/// How rotary frequencies are stretched. YaRN is static here: it applies at every position.
struct RopeScaling {
  bool yarn = false;    ///< false: plain rotary embedding, or the linear stretch of V1
  double factor = 1.0;  ///< without YaRN positions are divided by it; 1 but for V1
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  /// What a checkpoint without the keys means, by the code it shipped with: 1 and 0.
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
};

enum class TopkMethod : uint8_t {
  kGreedy,              ///< V1, V2-Lite: best K of the softmax
  kGroupLimitedGreedy,  ///< V2: best K within the topk_group groups of highest maximum
  kNoauxTc,             ///< V3: sigmoid, correction bias for the choice, groups by their two best
  kSqrtSoftplus,        ///< V4: sqrt(softplus), correction bias for the choice, no groups
};

/// Everything the forward pass reads of config.json. Field names are its keys.
struct ModelConfig {
  std::string architecture;  ///< "DeepseekV3ForCausalLM"
  std::string model_type;    ///< "deepseek_v3"

  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  /// V1: heads of keys and values, shared by as many heads of queries each. 0: another family.
  int64_t num_key_value_heads = 0;
  int64_t q_lora_rank = 0;  ///< 0: plain q_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t intermediate_size = 0;

  int64_t n_routed_experts = 0;  ///< 0: every layer is dense
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  TopkMethod topk_method = TopkMethod::kGreedy;
  bool norm_topk_prob = false;
  double routed_scaling_factor = 1.0;

  // DeepSeek-V3.2: which keys a token attends to.
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;  ///< 0: no indexer, every key

  // DeepSeek-V4.
  int64_t head_dim = 0;  ///< of the one row of a token that is key and value; 0: another family
  int64_t o_groups = 0;  ///< of heads, each with a product of its own before o_proj
  int64_t o_lora_rank = 0;
  int64_t sliding_window = 0;                  ///< tokens, the query's own among them
  std::vector<CompressRatio> compress_ratios;  ///< of each layer, draft layers behind the others
  double compress_rope_theta = 0.0;  ///< of layers with compressed rows, with rope_scaling
  int64_t num_hash_layers = 0;       ///< the first layers choose experts by token id
  double swiglu_limit = 0.0;         ///< 0: none
  int64_t hc_mult = 0;               ///< residual streams
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0.0;

  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool rope_interleave = true;  ///< pairs (2i, 2i+1), as checkpoints of MLA are; V1: in halves
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  int64_t num_nextn_predict_layers = 0;  ///< draft layers, stored after the main ones
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;

  bool is_v4() const { return head_dim > 0; }

  /// Keys and values of every head are cached as they are projected: DeepSeek-MoE.
  bool is_v1() const { return num_key_value_heads > 0; }

  /// Every layer chooses its keys by an indexer: DeepSeek-V3.2.
  bool has_indexer() const { return index_topk > 0 && !is_v4(); }

  CompressRatio compress_ratio(int64_t layer) const {
    return compress_ratios[static_cast<size_t>(layer)];
  }

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }

  /// Numbers that the KV cache keeps per token and layer: Lkv + Dr.
  int64_t kv_width() const { return kv_lora_rank + qk_rope_head_dim; }

  /// True if layer `index` has experts; draft layers count on from num_hidden_layers.
  bool is_moe_layer(int64_t index) const {
    return n_routed_experts > 0 && index >= first_k_dense_replace && index % moe_layer_freq == 0;
  }

  /// The factor of the attention scores: Dq^-1/2, times m(factor, mscale_all_dim)^2 with YaRN. V1
  /// and V4: D^-1/2.
  double softmax_scale() const;

  /// What the cos and sin tables are multiplied by: m(factor, mscale) / m(factor, mscale_all_dim).
  double rope_attention_factor() const;

  SymbolTable symbols() const;
};

/// m(F, a) = 0.1 a ln F + 1, or 1 for F <= 1. Source: YaRN, arXiv 2309.00071, eq. 22.
double yarn_mscale(double factor, double mscale);

/// The first `layers` layers of a model (1 to num_hidden_layers), and its draft layers: what is
/// listed by layer is cut with them.
ModelConfig first_layers(ModelConfig config, int64_t layers);

/// The model types of config.json that this build runs.
std::vector<std::string_view> known_model_types();

/// Reads a config.json. `what` names it in messages. Unknown keys are ignored; known ones are
/// checked for type, range and agreement with each other.
/// Errors: Corrupt for missing keys and values that contradict each other or a limit, Unsupported
/// for what is understood but not available; both name the key, what was found and what is
/// expected.
Result<ModelConfig> parse_config(std::string_view text, std::string_view what = "config.json");

/// The same of a document that is parsed already.
Result<ModelConfig> parse_config(const Json& json, std::string_view what);

/// Checks what parse_config checks of a configuration that was not read from a file.
Status validate_config(const ModelConfig& config, std::string_view what);

/// The sampling defaults of a checkpoint. Absent fields are not set by the file.
struct GenerationConfig {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
};

/// Reads a generation_config.json. Errors: Corrupt, naming key, found and expected.
Result<GenerationConfig> parse_generation_config(std::string_view text,
                                                 std::string_view what = "generation_config.json");

}  // namespace fathom
