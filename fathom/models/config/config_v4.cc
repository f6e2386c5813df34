#include "fathom/models/config/config_v4.h"

#include <algorithm>
#include <iterator>

#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/models/config/config_limits.h"

namespace fathom {
namespace {

struct RatioName {
  std::string_view layer_type;
  CompressRatio ratio;
};

constexpr RatioName kRatios[] = {
    {"sliding_attention", CompressRatio::kNone},
    {"compressed_sparse_attention", CompressRatio::kSparse},
    {"heavily_compressed_attention", CompressRatio::kHeavy},
};

void read_ratio_numbers(ConfigReader& in, const Json& list, ModelConfig& c) {
  for (const Json& entry : list.items()) {
    const auto* known = std::find_if(std::begin(kRatios), std::end(kRatios), [&](RatioName r) {
      return entry.is_int() && entry.as_int() == static_cast<int64_t>(r.ratio);
    });
    if (known == std::end(kRatios)) {
      return in.fail(
          corrupt(str_cat(in.what(), ": compress_ratios[", c.compress_ratios.size(), "] is ",
                          entry.is_int() ? str_cat(entry.as_int()) : std::string("no integer"),
                          ", expected 0 (window alone), 4 (chosen rows) or 128 (every row)")));
    }
    c.compress_ratios.push_back(known->ratio);
  }
}

// Draft layers are not in the list of words: they have a window alone.
void read_ratio_words(ConfigReader& in, const Json& list, ModelConfig& c) {
  for (const Json& entry : list.items()) {
    const auto* known = std::find_if(std::begin(kRatios), std::end(kRatios), [&](RatioName r) {
      return entry.is_string() && entry.as_string() == r.layer_type;
    });
    if (known == std::end(kRatios)) {
      return in.fail(
          corrupt(str_cat(in.what(), ": layer_types[", c.compress_ratios.size(), "] is ",
                          entry.is_string() ? str_cat("\"", entry.as_string().substr(0, 64), "\"")
                                            : std::string("no string"),
                          ", expected sliding_attention, compressed_sparse_attention or "
                          "heavily_compressed_attention")));
    }
    c.compress_ratios.push_back(known->ratio);
  }
  if (static_cast<int64_t>(c.compress_ratios.size()) == c.num_hidden_layers) {
    c.compress_ratios.resize(static_cast<size_t>(c.num_hidden_layers + c.num_nextn_predict_layers),
                             CompressRatio::kNone);
  }
}

// Later checkpoints have a drafter of several stages (dspark_*) in place of the draft layer, with
// entries of its own behind those of the layers. The layers are the same without it.
void read_ratios(ConfigReader& in, ModelConfig& c) {
  const bool other_drafter = in.has_prefix("dspark_");
  if (other_drafter) c.num_nextn_predict_layers = 0;
  const bool words = !in.has("compress_ratios") && in.has("layer_types");
  const std::string_view key = words ? "layer_types" : "compress_ratios";
  const Json* list = in.find(key);
  const int64_t layers = c.num_hidden_layers + (words ? 0 : c.num_nextn_predict_layers);
  const auto entries = list != nullptr && list->is_array()
                           ? static_cast<int64_t>(list->items().size())
                           : int64_t{-1};
  if (other_drafter ? entries < layers : entries != layers) {
    const std::string found =
        entries >= 0 ? str_cat("a list of ", entries) : std::string("no list");
    return in.fail(corrupt(
        str_cat(in.what(), ": ", key, " is ", found, ", expected ", layers,
                " entries: num_hidden_layers ", c.num_hidden_layers,
                words ? std::string()
                      : str_cat(" and num_nextn_predict_layers ", c.num_nextn_predict_layers))));
  }
  if (words) {
    read_ratio_words(in, *list, c);
  } else {
    read_ratio_numbers(in, *list, c);
  }
  if (other_drafter && c.compress_ratios.size() > static_cast<size_t>(layers)) {
    c.compress_ratios.resize(static_cast<size_t>(layers));
  }
}

// Hash layers come first, so a list of words is a number.
void read_hash_layers(ConfigReader& in, ModelConfig& c) {
  const Json* words = in.find("mlp_layer_types");
  if (in.has("num_hash_layers") || words == nullptr || !words->is_array()) {
    c.num_hash_layers = in.integer_or("num_hash_layers", 0, kMaxLayers, 0);
    return;
  }
  bool ended = false;
  for (const Json& entry : words->items()) {
    const bool hash = entry.is_string() && entry.as_string() == "hash_moe";
    if ((!hash && !(entry.is_string() && entry.as_string() == "moe")) || (hash && ended)) {
      return in.fail_value("mlp_layer_types", "hash_moe for the first layers, then moe");
    }
    ended = !hash;
    c.num_hash_layers += hash ? 1 : 0;
  }
}

void read_v4_experts(ConfigReader& in, ModelConfig& c) {
  c.n_routed_experts = in.integer("n_routed_experts", 1, kMaxExperts);
  c.n_shared_experts = in.integer_or("n_shared_experts", 0, kMaxExperts, 1);
  c.num_experts_per_tok = in.integer("num_experts_per_tok", 1, kMaxExperts);
  c.moe_intermediate_size = in.integer("moe_intermediate_size", 1, kMaxIntermediate);
  c.intermediate_size = c.moe_intermediate_size;
  c.topk_method = TopkMethod::kSqrtSoftplus;
  c.norm_topk_prob = true;
  c.routed_scaling_factor = in.number("routed_scaling_factor", 1e-6, 1e6);
  c.swiglu_limit = in.number_or("swiglu_limit", 0.0, 1e6, 0.0);
  read_hash_layers(in, c);
  if (const std::string s = in.text_or("scoring_func", "sqrtsoftplus"); s != "sqrtsoftplus") {
    in.fail(unsupported(str_cat(in.what(), ": scoring_func is \"", s.substr(0, 64),
                                "\", expected \"sqrtsoftplus\"")));
  }
  if (!in.boolean_or("norm_topk_prob", true)) {
    in.fail(unsupported(str_cat(in.what(), ": norm_topk_prob is false, expected true")));
  }
}

void read_v4_yarn(ConfigReader& rope, ModelConfig& c) {
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "default") return;
  if (type != "yarn") {
    return rope.fail(unsupported(str_cat(rope.what(), ": rope_type is \"", type.substr(0, 64),
                                         "\", expected yarn or default")));
  }
  RopeScaling& s = c.rope_scaling;
  s.yarn = true;
  s.factor = rope.number("factor", 1.0, 1e6);
  s.original_max_position_embeddings =
      rope.integer("original_max_position_embeddings", 1, kMaxPositions);
  s.beta_fast = rope.number_or("beta_fast", 1e-3, 1e6, 32.0);
  s.beta_slow = rope.number_or("beta_slow", 1e-3, 1e6, 1.0);
  // V4 scales neither tables nor scores (transformers writes attention_factor 1).
  s.mscale = 0.0;
  if (const double f = rope.number_or("attention_factor", 0.0, 100.0, 1.0); f != 1.0) {
    rope.fail(unsupported(str_cat(rope.what(), ": attention_factor is ", f, ", expected 1")));
  }
}

}  // namespace

void read_v4(ConfigReader& in, ModelConfig& c) {
  c.hidden_size = in.integer("hidden_size", 1, kMaxHidden);
  c.num_hidden_layers = in.integer("num_hidden_layers", 1, kMaxLayers);
  c.num_nextn_predict_layers = in.integer_or("num_nextn_predict_layers", 0, 16, 0);
  c.num_attention_heads = in.integer("num_attention_heads", 1, kMaxHeads);
  if (const int64_t heads = in.integer_or("num_key_value_heads", 1, kMaxHeads, 1); heads != 1) {
    in.fail_value("num_key_value_heads", "1: all heads share one row");
  }
  c.head_dim = in.integer("head_dim", 2, kMaxHeadDim);
  c.qk_rope_head_dim = in.integer("qk_rope_head_dim", 2, kMaxHeadDim);
  c.qk_nope_head_dim = c.head_dim - c.qk_rope_head_dim;
  c.q_lora_rank = in.integer("q_lora_rank", 1, kMaxHidden);
  c.o_groups = in.integer("o_groups", 1, kMaxHeads);
  c.o_lora_rank = in.integer("o_lora_rank", 1, kMaxHidden);
  c.sliding_window = in.integer("sliding_window", 1, 65'536);
  c.index_n_heads = in.integer("index_n_heads", 1, kMaxHeads);
  c.index_head_dim = in.integer("index_head_dim", 2, kMaxIndexHeadDim);
  c.index_topk = in.integer("index_topk", 1, kMaxPositions);
  c.hc_mult = in.integer("hc_mult", 1, kMaxStreams);
  c.hc_sinkhorn_iters = in.integer("hc_sinkhorn_iters", 1, 1000);
  c.hc_eps = in.number("hc_eps", 1e-12, 1e-2);
  read_ratios(in, c);
  read_v4_experts(in, c);
}

void read_v4_rope(ConfigReader& in, ModelConfig& c) {
  constexpr double kMaxTheta = 1e12;
  c.max_position_embeddings = in.integer("max_position_embeddings", 1, kMaxPositions);
  c.rope_theta = in.number_or("rope_theta", 1.0, kMaxTheta, 10000.0);
  const Json* both = in.has("rope_scaling") ? nullptr : in.find("rope_parameters");
  if (both == nullptr) {
    c.compress_rope_theta = in.number("compress_rope_theta", 1.0, kMaxTheta);
    const Json* block = in.find("rope_scaling");
    if (block == nullptr) return;
    ConfigReader rope(*block, str_cat(in.what(), ": rope_scaling"));
    read_v4_yarn(rope, c);
    return in.fail(rope.take_status());
  }
  const Json* main = both->is_object() ? both->find("main") : nullptr;
  const Json* compress = both->is_object() ? both->find("compress") : nullptr;
  if (main == nullptr || compress == nullptr) {
    return in.fail_value("rope_parameters", "an object with main and compress");
  }
  ConfigReader of_window(*main, str_cat(in.what(), ": rope_parameters: main"));
  c.rope_theta = of_window.number_or("rope_theta", 1.0, kMaxTheta, c.rope_theta);
  in.fail(of_window.take_status());
  ConfigReader of_rows(*compress, str_cat(in.what(), ": rope_parameters: compress"));
  c.compress_rope_theta = of_rows.number("rope_theta", 1.0, kMaxTheta);
  read_v4_yarn(of_rows, c);
  in.fail(of_rows.take_status());
}

Status validate_v4(const ModelConfig& c, std::string_view what) {
  if (c.qk_rope_head_dim >= c.head_dim) {
    return contradiction(what, "qk_rope_head_dim", c.qk_rope_head_dim,
                         str_cat("less than ", c.head_dim, " (head_dim)"));
  }
  if (c.index_head_dim < c.qk_rope_head_dim) {
    return contradiction(what, "index_head_dim", c.index_head_dim,
                         str_cat("at least ", c.qk_rope_head_dim,
                                 " (qk_rope_head_dim), the channels that are rotated"));
  }
  if (c.num_attention_heads % c.o_groups != 0) {
    return contradiction(what, "o_groups", c.o_groups,
                         str_cat("a divisor of ", c.num_attention_heads, " (num_attention_heads)"));
  }
  const int64_t layers = c.num_hidden_layers + c.num_nextn_predict_layers;
  if (static_cast<int64_t>(c.compress_ratios.size()) != layers) {
    return contradiction(what, "compress_ratios", str_cat(c.compress_ratios.size(), " entries"),
                         str_cat(layers, ", one a layer"));
  }
  for (int64_t i = c.num_hidden_layers; i < layers; ++i) {
    if (c.compress_ratio(i) == CompressRatio::kNone) continue;
    return contradiction(what, str_cat("compress_ratios[", i, "]"),
                         static_cast<int64_t>(c.compress_ratio(i)),
                         "0: a draft layer has a window alone");
  }
  if (c.num_hash_layers > c.num_hidden_layers) {
    return contradiction(what, "num_hash_layers", c.num_hash_layers,
                         str_cat("at most ", c.num_hidden_layers, " (num_hidden_layers)"));
  }
  return {};
}

}  // namespace fathom
