#include "fathom/models/config/config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/models/config/config_limits.h"
#include "fathom/models/config/config_reader.h"
#include "fathom/models/config/config_v1.h"
#include "fathom/models/config/config_v4.h"
#include "fathom/text/file_kind.h"
#include "fathom/weights/checkpoint/checkpoint.h"

namespace fathom {
namespace {

constexpr std::string_view kFirstType = "deepseek";

struct KnownType {
  std::string_view model_type;
  std::string_view architecture;
  bool runs;  // false: recognised, so that the message can say what is missing
};

constexpr KnownType kKnownTypes[] = {
    {kFirstType, "DeepseekForCausalLM", true},
    {"deepseek_v2", "DeepseekV2ForCausalLM", true},
    {"deepseek_v3", "DeepseekV3ForCausalLM", true},
    {"deepseek_v32", "DeepseekV32ForCausalLM", true},
    {"deepseek_v4", "DeepseekV4ForCausalLM", true},
    {"deepseek_v41", "DeepseekV41ForCausalLM", false},
};

std::string join_known() {
  std::string out;
  for (std::string_view name : known_model_types()) {
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
}

// model_type and architectures[0]; either may be missing, and they must not contradict each other.
void read_type(ConfigReader& in, ModelConfig& c) {
  c.model_type = in.text_or("model_type", "");
  if (const Json* list = in.find("architectures")) {
    if (!list->is_array() || list->items().empty() || !list->items()[0].is_string()) {
      return in.fail_value("architectures", "a list of at least one name");
    }
    c.architecture = list->items()[0].as_string();
  }
  const auto* known =
      std::find_if(std::begin(kKnownTypes), std::end(kKnownTypes), [&](const KnownType& t) {
        return c.model_type.empty() ? t.architecture == c.architecture
                                    : t.model_type == c.model_type;
      });
  const std::string found =
      str_cat(in.what(), ": model_type is ",
              c.model_type.empty() ? std::string("missing")
                                   : str_cat("\"", c.model_type.substr(0, 64), "\""));
  if (known == std::end(kKnownTypes)) {
    return in.fail(unsupported(str_cat(found, ", expected one of ", join_known(),
                                       "\nhint: models of other families do not run here")));
  }
  if (!known->runs) {
    return in.fail(
        unsupported(str_cat(in.what(), ": models of type \"", known->model_type,
                            "\" are not supported yet; this build runs ", join_known())));
  }
  if (!c.architecture.empty() && c.architecture != known->architecture) {
    return in.fail(unsupported(str_cat(
        in.what(), ": architectures[0] is \"", c.architecture.substr(0, 64), "\", expected \"",
        known->architecture, "\" for model_type \"", known->model_type, "\"")));
  }
  c.model_type = known->model_type;
  c.architecture = known->architecture;
}

void read_attention(ConfigReader& in, ModelConfig& c) {
  c.hidden_size = in.integer("hidden_size", 1, kMaxHidden);
  c.num_hidden_layers = in.integer("num_hidden_layers", 1, kMaxLayers);
  c.num_attention_heads = in.integer("num_attention_heads", 1, kMaxHeads);
  c.q_lora_rank = in.integer_or("q_lora_rank", 1, kMaxHidden, 0);
  c.kv_lora_rank = in.integer("kv_lora_rank", 1, kMaxHidden);
  c.qk_nope_head_dim = in.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  c.qk_rope_head_dim = in.integer("qk_rope_head_dim", 2, kMaxHeadDim);
  c.v_head_dim = in.integer("v_head_dim", 1, kMaxHeadDim);
  c.intermediate_size = in.integer("intermediate_size", 1, kMaxIntermediate);
  const int64_t kv_heads =
      in.integer_or("num_key_value_heads", 1, kMaxHeads, c.num_attention_heads);
  if (kv_heads != c.num_attention_heads) {
    in.fail_value("num_key_value_heads",
                  str_cat(c.num_attention_heads, " (num_attention_heads), as MLA has it"));
  }
  const int64_t qk = in.integer_or("qk_head_dim", 1, 2 * kMaxHeadDim, c.qk_head_dim());
  if (qk != c.qk_head_dim()) {
    in.fail_value("qk_head_dim",
                  str_cat(c.qk_head_dim(), " (qk_nope_head_dim + qk_rope_head_dim)"));
  }
}

void read_indexer(ConfigReader& in, ModelConfig& c) {
  if (c.model_type != "deepseek_v32") return;
  c.index_n_heads = in.integer("index_n_heads", 1, kMaxHeads);
  c.index_head_dim = in.integer("index_head_dim", 2, kMaxIndexHeadDim);
  c.index_topk = in.integer("index_topk", 1, kMaxPositions);
}

TopkMethod read_topk_method(ConfigReader& in, bool is_v3) {
  const std::string name = in.text_or("topk_method", is_v3 ? "noaux_tc" : "greedy");
  if (name == "greedy") return TopkMethod::kGreedy;
  if (name == "group_limited_greedy") return TopkMethod::kGroupLimitedGreedy;
  if (name != "noaux_tc") {
    in.fail(unsupported(str_cat(in.what(), ": topk_method is \"", name.substr(0, 64),
                                "\", expected greedy, group_limited_greedy or noaux_tc")));
  }
  return TopkMethod::kNoauxTc;
}

void read_experts(ConfigReader& in, ModelConfig& c) {
  const bool is_v3 = c.model_type != "deepseek_v2" && c.model_type != kFirstType;
  c.n_routed_experts = in.integer_or("n_routed_experts", 1, kMaxExperts, 0);
  if (c.n_routed_experts == 0) return;
  c.n_shared_experts = in.integer_or("n_shared_experts", 0, kMaxExperts, 0);
  c.num_experts_per_tok = in.integer("num_experts_per_tok", 1, kMaxExperts);
  c.moe_intermediate_size = in.integer("moe_intermediate_size", 1, kMaxIntermediate);
  c.first_k_dense_replace = in.integer_or("first_k_dense_replace", 0, kMaxLayers, 0);
  c.moe_layer_freq = in.integer_or("moe_layer_freq", 1, kMaxLayers, 1);
  c.n_group = in.integer_or("n_group", 1, kMaxExperts, 1);
  c.topk_group = in.integer_or("topk_group", 1, kMaxExperts, 1);
  c.topk_method = read_topk_method(in, is_v3);
  c.norm_topk_prob = in.boolean_or("norm_topk_prob", is_v3);
  c.routed_scaling_factor = in.number_or("routed_scaling_factor", 1e-6, 1e6, is_v3 ? 2.5 : 1.0);
  const bool sigmoid = c.topk_method == TopkMethod::kNoauxTc;
  const std::string scoring = in.text_or("scoring_func", sigmoid ? "sigmoid" : "softmax");
  if (scoring != (sigmoid ? "sigmoid" : "softmax")) {
    in.fail(unsupported(str_cat(in.what(), ": scoring_func is \"", scoring.substr(0, 64),
                                "\", expected \"", sigmoid ? "sigmoid" : "softmax",
                                "\" for this topk_method")));
  }
}

// rope_scaling of the original files, rope_parameters of newer transformers; type or rope_type.
void read_rope(ConfigReader& in, ModelConfig& c) {
  constexpr double kMaxTheta = 1e12;
  c.max_position_embeddings = in.integer("max_position_embeddings", 1, kMaxPositions);
  c.rope_theta = in.number_or("rope_theta", 1.0, kMaxTheta, 10000.0);
  c.rope_interleave = in.boolean_or("rope_interleave", c.model_type != kFirstType);
  const std::string_view key = in.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const Json* block = in.find(key);
  if (block == nullptr) return;
  ConfigReader rope(*block, str_cat(in.what(), ": ", key));
  c.rope_theta = rope.number_or("rope_theta", 1.0, kMaxTheta, c.rope_theta);
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (rope.has("type") && rope.text_or("type", "") != type) {
    rope.fail_value("type", str_cat("\"", type.substr(0, 64), "\", as rope_type says"));
  }
  if (c.model_type == kFirstType && type == "linear") {
    c.rope_scaling.factor = rope.number("factor", 1.0, 1e6);
  } else if (c.model_type == kFirstType && type != "default") {
    // Dynamic scaling would give a token another rotation with each length of its sequence, so
    // that keys in the cache would not stay what they are.
    rope.fail(unsupported(str_cat(rope.what(), ": the type is \"", type.substr(0, 64),
                                  "\", expected linear or null: a model of type \"", kFirstType,
                                  "\" runs without dynamic or yarn scaling")));
  } else if (type == "yarn") {
    RopeScaling& s = c.rope_scaling;
    s.yarn = true;
    s.factor = rope.number("factor", 1.0, 1e6);
    s.original_max_position_embeddings =
        rope.integer("original_max_position_embeddings", 1, kMaxPositions);
    s.beta_fast = rope.number_or("beta_fast", 1e-3, 1e6, 32.0);
    s.beta_slow = rope.number_or("beta_slow", 1e-3, 1e6, 1.0);
    s.mscale = rope.number_or("mscale", 0.0, 100.0, 1.0);
    s.mscale_all_dim = rope.number_or("mscale_all_dim", 0.0, 100.0, 0.0);
    for (std::string_view name : {"attention_factor", "truncate"}) {
      if (rope.has(name)) {
        rope.fail(unsupported(str_cat(rope.what(), ": ", name,
                                      " is set, which DeepSeek models do not use; remove it")));
      }
    }
  } else if (type != "default") {
    rope.fail(unsupported(str_cat(rope.what(), ": rope_type is \"", type.substr(0, 64),
                                  "\", expected yarn or default")));
  }
  in.fail(rope.take_status());
}

void read_rest(ConfigReader& in, ModelConfig& c) {
  c.vocab_size = in.integer("vocab_size", 1, kMaxVocab);
  c.rms_norm_eps = in.number_or("rms_norm_eps", 1e-12, 1e-2, 1e-6);
  c.tie_word_embeddings = in.boolean_or("tie_word_embeddings", false);
  c.eos_token_ids = in.ids("eos_token_id", c.vocab_size - 1);
  if (in.has("bos_token_id")) c.bos_token_id = in.integer("bos_token_id", 0, c.vocab_size - 1);
  for (std::string_view key : {"attention_bias", "mlp_bias"}) {
    if (in.boolean_or(key, false)) {
      in.fail(unsupported(str_cat(in.what(), ": ", key,
                                  " is true, expected false: no published checkpoint of this "
                                  "family has biases in its projections")));
    }
  }
  if (const std::string act = in.text_or("hidden_act", "silu"); act != "silu") {
    in.fail(unsupported(
        str_cat(in.what(), ": hidden_act is \"", act.substr(0, 64), "\", expected \"silu\"")));
  }
}

Status validate_indexer(const ModelConfig& c, std::string_view what) {
  if (c.q_lora_rank == 0) {
    return contradiction(what, "q_lora_rank", 0,
                         "the rank of the query latent, which the indexer reads");
  }
  if (c.index_head_dim < c.qk_rope_head_dim) {
    return contradiction(what, "index_head_dim", c.index_head_dim,
                         str_cat("at least ", c.qk_rope_head_dim,
                                 " (qk_rope_head_dim), the channels that are rotated"));
  }
  return {};
}

Status validate_experts(const ModelConfig& c, std::string_view what) {
  if (c.num_experts_per_tok > c.n_routed_experts) {
    return contradiction(what, "num_experts_per_tok", c.num_experts_per_tok,
                         str_cat("at most ", c.n_routed_experts, " (n_routed_experts)"));
  }
  if (c.first_k_dense_replace > c.num_hidden_layers) {
    return contradiction(what, "first_k_dense_replace", c.first_k_dense_replace,
                         str_cat("at most ", c.num_hidden_layers, " (num_hidden_layers)"));
  }
  // The reference's greedy choice looks at no groups.
  const bool grouped =
      c.topk_method != TopkMethod::kGreedy && c.topk_method != TopkMethod::kSqrtSoftplus;
  if (grouped && c.n_routed_experts % c.n_group != 0) {
    return contradiction(what, "n_group", c.n_group,
                         str_cat("a divisor of ", c.n_routed_experts, " (n_routed_experts)"));
  }
  if (grouped && c.topk_group > c.n_group) {
    return contradiction(what, "topk_group", c.topk_group,
                         str_cat("at most ", c.n_group, " (n_group)"));
  }
  const int64_t candidates = c.topk_group * (c.n_routed_experts / c.n_group);
  if (grouped && c.num_experts_per_tok > candidates) {
    return contradiction(what, "num_experts_per_tok", c.num_experts_per_tok,
                         str_cat("at most ", candidates, " (experts in topk_group groups)"));
  }
  if (c.topk_method == TopkMethod::kNoauxTc && c.n_group > 1 &&
      c.n_routed_experts / c.n_group < 2) {
    return contradiction(what, "n_group", c.n_group,
                         "groups of at least two experts, whose scores are added");
  }
  // Each expert is three matrices; their names are listed before a file is looked at.
  const int64_t most = kMaxTensors / 3 / std::max<int64_t>(c.num_hidden_layers, 1);
  if (c.n_routed_experts > most) {
    return contradiction(what, "n_routed_experts", c.n_routed_experts,
                         str_cat("at most ", most, " for ", c.num_hidden_layers,
                                 " layers (num_hidden_layers): a checkpoint holds at most ",
                                 kMaxTensors, " tensors"));
  }
  return {};
}

}  // namespace

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double ModelConfig::softmax_scale() const {
  const double m =
      rope_scaling.yarn ? yarn_mscale(rope_scaling.factor, rope_scaling.mscale_all_dim) : 1.0;
  return m * m / std::sqrt(static_cast<double>(qk_head_dim()));
}

double ModelConfig::rope_attention_factor() const {
  if (!rope_scaling.yarn) return 1.0;
  return yarn_mscale(rope_scaling.factor, rope_scaling.mscale) /
         yarn_mscale(rope_scaling.factor, rope_scaling.mscale_all_dim);
}

SymbolTable ModelConfig::symbols() const {
  SymbolTable s;
  s.set("H", hidden_size);
  s.set("Nh", num_attention_heads);
  if (q_lora_rank > 0) s.set("Lq", q_lora_rank);
  if (is_v1()) {
    s.set("Nk", num_key_value_heads);
    s.set("D", qk_head_dim());
    s.set("Id", intermediate_size);
  } else if (is_v4()) {
    s.set("D", head_dim);
    s.set("Dn", qk_nope_head_dim);
    s.set("Dr", qk_rope_head_dim);
    s.set("Go", o_groups);
    s.set("Hg", num_attention_heads / o_groups);
    s.set("Lo", o_lora_rank);
    s.set("W", sliding_window);
    s.set("n", hc_mult);
  } else {
    s.set("Lkv", kv_lora_rank);
    s.set("Dn", qk_nope_head_dim);
    s.set("Dr", qk_rope_head_dim);
    s.set("Dq", qk_head_dim());
    s.set("Dv", v_head_dim);
    s.set("Id", intermediate_size);
  }
  if (n_routed_experts > 0) {
    s.set("E", n_routed_experts);
    s.set("K", num_experts_per_tok);
    s.set("I", moe_intermediate_size);
    s.set("Ns", n_shared_experts);
    if (!is_v4()) s.set("G", n_group);
  }
  if (index_topk > 0) {
    s.set("Hi", index_n_heads);
    s.set("Di", index_head_dim);
    s.set("Kt", index_topk);
  }
  s.set("V", vocab_size);
  return s;
}

std::vector<std::string_view> known_model_types() {
  std::vector<std::string_view> out;
  for (const KnownType& t : kKnownTypes) {
    if (t.runs) out.push_back(t.model_type);
  }
  return out;
}

Status validate_config(const ModelConfig& c, std::string_view what) {
  if (c.is_v1()) FATHOM_TRY(validate_v1(c, what));
  if (c.qk_rope_head_dim < 2 || c.qk_rope_head_dim % 2 != 0) {
    return contradiction(what, "qk_rope_head_dim", c.qk_rope_head_dim,
                         "an even number: rotary pairs");
  }
  if (c.max_position_embeddings > kMaxRotaryNumbers / c.qk_rope_head_dim) {
    return contradiction(what, "max_position_embeddings", c.max_position_embeddings,
                         str_cat("at most ", kMaxRotaryNumbers / c.qk_rope_head_dim,
                                 c.is_v1() ? " for a head dimension of " : " for qk_rope_head_dim ",
                                 c.qk_rope_head_dim, ", whose rotary table has ", kMaxRotaryNumbers,
                                 " numbers then"));
  }
  if (c.rope_scaling.yarn && c.rope_theta <= 1.0) {
    return contradiction(what, "rope_theta", c.rope_theta, "a number above 1");
  }
  if (c.rope_scaling.yarn && c.rope_scaling.beta_fast < c.rope_scaling.beta_slow) {
    return contradiction(what, "rope_scaling: beta_fast", c.rope_scaling.beta_fast,
                         str_cat("at least ", c.rope_scaling.beta_slow, " (beta_slow)"));
  }
  if (c.has_indexer()) FATHOM_TRY(validate_indexer(c, what));
  if (c.is_v4()) FATHOM_TRY(validate_v4(c, what));
  return c.n_routed_experts > 0 ? validate_experts(c, what) : Status{};
}

ModelConfig first_layers(ModelConfig c, int64_t layers) {
  FATHOM_CHECK(layers >= 1 && layers <= c.num_hidden_layers, str_cat(layers, " layers"));
  if (c.is_v4()) {
    c.compress_ratios.erase(c.compress_ratios.begin() + layers,
                            c.compress_ratios.begin() + c.num_hidden_layers);
  }
  c.num_hidden_layers = layers;
  c.first_k_dense_replace = std::min(c.first_k_dense_replace, layers);
  c.num_hash_layers = std::min(c.num_hash_layers, layers);
  return c;
}

Result<ModelConfig> parse_config(std::string_view text, std::string_view what) {
  JsonLimits limits;
  limits.big_integer = JsonLimits::BigInteger::kRound;
  FATHOM_ASSIGN(const Json json, parse_json(text, limits, what));
  return parse_config(json, what);
}

Result<ModelConfig> parse_config(const Json& json, std::string_view what) {
  ConfigReader in(json, std::string(what));
  ModelConfig config;
  read_type(in, config);
  if (config.model_type == "deepseek_v4") {
    read_v4(in, config);
    read_v4_rope(in, config);
  } else if (config.model_type == kFirstType) {
    refuse_later_keys(in);
    read_v1(in, config);
    read_experts(in, config);
    read_rope(in, config);
  } else {
    read_attention(in, config);
    read_indexer(in, config);
    read_experts(in, config);
    read_rope(in, config);
    config.num_nextn_predict_layers = in.integer_or("num_nextn_predict_layers", 0, 16, 0);
  }
  read_rest(in, config);
  FATHOM_TRY(in.take_status());
  FATHOM_TRY(validate_config(config, what));
  return config;
}

Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view what) {
  FATHOM_ASSIGN(const Json json, parse_json_file(text, {}, what));
  ConfigReader in(json, std::string(what));
  GenerationConfig out;
  if (in.has("do_sample")) out.do_sample = in.boolean_or("do_sample", false);
  // The ranges of the sampler, so that what is accepted here can be sampled with.
  if (in.has("temperature")) out.temperature = in.number("temperature", 0.0, 2.0);
  if (in.has("top_p")) out.top_p = in.number("top_p", 1e-6, 1.0);
  if (in.has("top_k")) out.top_k = in.integer("top_k", 0, kMaxVocab);
  if (in.has("repetition_penalty")) {
    out.repetition_penalty = in.number("repetition_penalty", 1e-3, 10.0);
  }
  if (in.has("bos_token_id")) out.bos_token_id = in.integer("bos_token_id", 0, kMaxVocab);
  out.eos_token_ids = in.ids("eos_token_id", kMaxVocab);
  FATHOM_TRY(in.take_status());
  return out;
}

}  // namespace fathom
