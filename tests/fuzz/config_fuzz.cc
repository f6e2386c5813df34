// F2: config.json, a zero byte, generation_config.json. What hostile text can reach before the
// first tensor is looked at: the readers, the plan of all weights, and a dry forward pass.
// Oracles: parameters, cache width and tables as a plain recomputation in 128 bits gives them; a
// second, naive reader finds the same integers within the same limits; what is accepted can be
// planned, sampled with and written back; errors are short, say which file, and are no bug of ours.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fathom/layers/attention/rope_table.h"
#include "fathom/models/config/presets.h"
#include "fathom/models/registry.h"
#include "fathom/runtime/sample/params.h"
#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"
#include "tests/fuzz/json_mutator.h"

namespace {

using fathom::Format;
using fathom::Json;
using fathom::ModelConfig;
using fathom::Status;
using fathom::StatusCode;

using Wide = __int128;

void require(bool condition, const char* what, const std::string& detail = {}) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

void check_error(const Status& status, const char* file) {
  const std::string message = status.message();
  require(status.code() == StatusCode::kCorrupt || status.code() == StatusCode::kUnsupported,
          "another code than Corrupt or Unsupported", message);
  require(message.starts_with(file), "a message without its file", message);
  require(message.size() < 500, "a long message", message);
  require(fathom::is_valid_utf8(message), "a message is no UTF-8");
}

// ---- 1. The naive reader: integers of the top level, by limits written down a second time.

struct Limit {
  const char* key;
  int64_t ModelConfig::*field;
  int64_t low;
  int64_t high;
};

constexpr Limit kLimits[] = {
    {"hidden_size", &ModelConfig::hidden_size, 1, 65536},
    {"num_hidden_layers", &ModelConfig::num_hidden_layers, 1, 1024},
    {"num_attention_heads", &ModelConfig::num_attention_heads, 1, 1024},
    {"q_lora_rank", &ModelConfig::q_lora_rank, 1, 65536},
    {"kv_lora_rank", &ModelConfig::kv_lora_rank, 1, 65536},
    {"qk_nope_head_dim", &ModelConfig::qk_nope_head_dim, 1, 4096},
    {"qk_rope_head_dim", &ModelConfig::qk_rope_head_dim, 2, 4096},
    {"v_head_dim", &ModelConfig::v_head_dim, 1, 4096},
    {"intermediate_size", &ModelConfig::intermediate_size, 1, 1048576},
    {"n_routed_experts", &ModelConfig::n_routed_experts, 1, 2048},
    {"max_position_embeddings", &ModelConfig::max_position_embeddings, 1, 1 << 24},
    {"vocab_size", &ModelConfig::vocab_size, 1, 1048576},
};

void check_fields(const ModelConfig& c, const Json& json) {
  for (const Limit& limit : kLimits) {
    // Of V1 they follow from hidden_size and the heads, whatever the file says of them.
    const std::string_view key = limit.key;
    if (c.is_v1() && (key.ends_with("head_dim") || key.ends_with("lora_rank"))) continue;
    const Json* value = json.find(limit.key);
    if (value == nullptr || value->is_null()) {
      require(c.*limit.field == 0, "an absent key has a value", limit.key);
      continue;
    }
    require(value->is_int() && value->as_int() == c.*limit.field, "another value", limit.key);
    require(c.*limit.field >= limit.low && c.*limit.field <= limit.high, "a limit", limit.key);
  }
  for (const int64_t id : c.eos_token_ids)
    require(id >= 0 && id < c.vocab_size, "an end token outside the vocabulary");
  require(c.qk_rope_head_dim % 2 == 0, "half a rotary pair");
  require(Wide{c.max_position_embeddings} * c.qk_rope_head_dim <= 1 << 28, "a large rotary table");
  if (c.n_routed_experts == 0) return;
  require(Wide{c.n_routed_experts} * c.num_hidden_layers * 3 <= 1'000'000, "too many tensors");
  require(c.num_experts_per_tok >= 1 && c.num_experts_per_tok <= c.n_routed_experts, "K and E");
  require(c.n_group >= 1 && c.topk_group >= 1, "no groups");
  if (c.topk_method != fathom::TopkMethod::kGreedy) {
    require(c.n_routed_experts % c.n_group == 0, "groups of unequal size");
    require(c.topk_group <= c.n_group, "more groups chosen than there are");
  }
}

// ---- 2. Derived numbers.

Wide mlp_numbers(Wide hidden, Wide width) {
  return 3 * hidden * width;
}

// All parameters of the main layers, embedding and head, from the equations of the reports.
Wide count_parameters(const ModelConfig& c) {
  const Wide h = c.hidden_size;
  const Wide heads = c.num_attention_heads;
  const Wide dq = c.qk_nope_head_dim + c.qk_rope_head_dim;
  const Wide lq = c.q_lora_rank;
  const Wide lkv = c.kv_lora_rank;
  const Wide query = lq > 0 ? h * lq + lq + heads * dq * lq : heads * dq * h;
  const Wide latent = (lkv + c.qk_rope_head_dim) * h + lkv;
  const Wide values = heads * (c.qk_nope_head_dim + c.v_head_dim) * lkv;
  const Wide of_heads = 2 * h * dq * (heads + c.num_key_value_heads);
  const Wide of_latents = query + latent + values + h * heads * c.v_head_dim;
  const Wide attention = (c.is_v1() ? of_heads : of_latents) + 2 * h;
  Wide total = 2 * Wide{c.vocab_size} * h + h;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    total += attention;
    const bool experts =
        c.n_routed_experts > 0 && layer >= c.first_k_dense_replace && layer % c.moe_layer_freq == 0;
    if (!experts) {
      total += mlp_numbers(h, c.intermediate_size);
      continue;
    }
    const Wide count = c.n_routed_experts;
    const bool biased = c.topk_method == fathom::TopkMethod::kNoauxTc;
    total += count * h + (biased ? count : 0) +
             mlp_numbers(h, Wide{c.moe_intermediate_size} * (count + c.n_shared_experts));
  }
  return total;
}

void check_rotary(const ModelConfig& c) {
  const fathom::RopeScaling& s = c.rope_scaling;
  const auto frequencies =
      fathom::rope_frequencies({.dim = c.qk_rope_head_dim,
                                .theta = c.rope_theta,
                                .yarn = s.yarn,
                                .factor = s.factor,
                                .original_positions = s.original_max_position_embeddings,
                                .beta_fast = s.beta_fast,
                                .beta_slow = s.beta_slow});
  for (const double w : frequencies)
    require(w > 0.0 && w <= 1.0, "a frequency outside (0, 1]", std::to_string(w));
  require(c.softmax_scale() > 0.0 && std::isfinite(c.softmax_scale()), "the softmax scale");
  require(c.rope_attention_factor() > 0.0 && std::isfinite(c.rope_attention_factor()),
          "the rotary factor");
}

// ---- 3. Plan and dry pass.

void check_dry_pass(const fathom::Model& model) {
  fathom::BatchShape shape;
  shape.prefill = {.count = 1, .new_tokens = 3, .cached = 0};
  if (model.config().max_position_embeddings > 7) {
    shape.decode = {.count = 2, .new_tokens = 1, .cached = 5};
  }
  const auto needs = fathom::dry_run(model, shape, {.num_threads = 2});
  if (needs.ok()) {
    require(needs->activation_bytes > 0 && needs->scratch_bytes >= 0, "memory of a step");
    return;
  }
  require(needs.status().code() == StatusCode::kUnsupported, "a dry pass fails otherwise",
          needs.status().message());
}

void check_plan(const ModelConfig& c, Format format) {
  // The plan of thousands of experts is the same as that of some, and takes a second.
  if (c.num_hidden_layers * std::max<int64_t>(c.n_routed_experts, 1) > 512) return;
  fathom::ModelOptions options;
  options.draft = false;
  const auto created = fathom::create_model(c, options);
  require(created.ok(), "no model", created.ok() ? "" : created.status().message());
  fathom::Model& model = **created;
  fathom::WeightPlan plan(
      c.symbols(), fathom::formats_of(*fathom::preset_formats(fathom::format_name(format), c)));
  if (const Status status = model.declare_weights(plan); !status.ok()) {
    require(status.code() == StatusCode::kUnsupported, "no plan", status.message());
    return;
  }
  const Wide parameters = count_parameters(c);
  require(plan.parameters(false) == static_cast<int64_t>(parameters), "another number of weights",
          std::to_string(plan.parameters(false)));
  require(plan.total_bytes() > 0, "the size of the weights wraps");
  require(Wide{plan.total_bytes()} * 2 > parameters, "weights smaller than four bits each");
  require(model.attach(fathom::WeightStore::dry(plan)).ok(), "no dry weights");
  const int64_t width = c.is_v1() ? 2 * c.num_key_value_heads * c.qk_rope_head_dim
                                  : c.kv_lora_rank + c.qk_rope_head_dim;
  require(model.cache_layout().groups[0].codec.fields[0].width == width, "the cache's width");
  check_dry_pass(model);
}

void check_config(std::string_view text) {
  const auto config = fathom::parse_config(text, "config.json");
  if (!config.ok()) return check_error(config.status(), "config.json");
  fathom::JsonLimits limits;
  limits.big_integer = fathom::JsonLimits::BigInteger::kRound;
  const Json json = *fathom::parse_json(text, limits, "config.json");
  check_fields(*config, json);
  check_rotary(*config);
  require(fathom::validate_config(*config, "again").ok(), "accepted and not valid");
  const auto again = fathom::parse_config(fathom::dump_json(json), "config.json");
  require(again.ok() && again->symbols().find("H") == config->hidden_size, "no fixed point");
  constexpr std::array kFormats{Format::kBf16, Format::kFp8Block, Format::kNvfp4};
  check_plan(*config, kFormats[text.size() % kFormats.size()]);
}

void check_generation(std::string_view text) {
  constexpr int64_t kVocab = 1 << 20;
  const auto g = fathom::parse_generation_config(text, "generation_config.json");
  if (!g.ok()) return check_error(g.status(), "generation_config.json");
  fathom::SamplingParams p;
  p.temperature = static_cast<float>(g->temperature.value_or(1.0));
  p.top_p = static_cast<float>(g->top_p.value_or(1.0));
  p.top_k = g->top_k.value_or(-1);
  p.repetition_penalty = static_cast<float>(g->repetition_penalty.value_or(1.0));
  const Status status = fathom::validate(p, kVocab);
  require(status.ok(), "accepted defaults that cannot be sampled with", status.message());
  for (const int64_t id : g->eos_token_ids)
    require(id >= 0 && id <= kVocab, "an end token outside every vocabulary");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  check_config(input.substr(0, zero));
  if (zero != input.npos) check_generation(input.substr(zero + 1));
  return 0;
}

#ifdef FATHOM_LIBFUZZER

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// The keys of both files; the mutator puts them where others were.
constexpr std::array<std::string_view, 47> kKeys{"architectures",
                                                 "model_type",
                                                 "hidden_size",
                                                 "num_hidden_layers",
                                                 "num_attention_heads",
                                                 "num_key_value_heads",
                                                 "q_lora_rank",
                                                 "kv_lora_rank",
                                                 "qk_head_dim",
                                                 "qk_nope_head_dim",
                                                 "qk_rope_head_dim",
                                                 "v_head_dim",
                                                 "intermediate_size",
                                                 "n_routed_experts",
                                                 "n_shared_experts",
                                                 "num_experts_per_tok",
                                                 "moe_intermediate_size",
                                                 "first_k_dense_replace",
                                                 "moe_layer_freq",
                                                 "n_group",
                                                 "topk_group",
                                                 "topk_method",
                                                 "norm_topk_prob",
                                                 "routed_scaling_factor",
                                                 "scoring_func",
                                                 "max_position_embeddings",
                                                 "rope_theta",
                                                 "rope_interleave",
                                                 "rope_scaling",
                                                 "rope_parameters",
                                                 "type",
                                                 "rope_type",
                                                 "factor",
                                                 "original_max_position_embeddings",
                                                 "beta_fast",
                                                 "mscale_all_dim",
                                                 "vocab_size",
                                                 "rms_norm_eps",
                                                 "tie_word_embeddings",
                                                 "num_nextn_predict_layers",
                                                 "eos_token_id",
                                                 "bos_token_id",
                                                 "attention_bias",
                                                 "do_sample",
                                                 "temperature",
                                                 "top_p",
                                                 "top_k"};

// One to four changes of one of the two documents; one time in four, and for text that is no JSON,
// bytes are changed instead.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data,
                                          size_t size,
                                          size_t max_size,
                                          unsigned int seed) {
  fathom::Rng rng(seed);
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const bool second = zero != input.npos && rng.next_below(4) == 0;
  const std::string_view text =
      second ? std::string_view(input).substr(zero + 1) : std::string_view(input).substr(0, zero);
  auto json = fathom::parse_json(text, {}, "input");
  if (!json.ok() || rng.next_below(4) == 0) return LLVMFuzzerMutate(data, size, max_size);
  for (uint32_t i = rng.next_below(4) + 1; i > 0; --i)
    fathom::mutate_json(*json, kKeys, rng);
  const std::string changed = fathom::dump_json(*json);
  std::string out = second ? input.substr(0, zero + 1) + changed : changed;
  if (!second && zero != input.npos) out += input.substr(zero);
  if (out.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(out.begin(), out.end(), data);
  return out.size();
}

#endif  // FATHOM_LIBFUZZER
