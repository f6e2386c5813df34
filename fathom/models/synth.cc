#include "fathom/models/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fathom/base/rng.h"
#include "fathom/models/config/presets.h"
#include "fathom/models/registry.h"
#include "fathom/os/sha256.h"
#include "fathom/text/byte_level.h"
#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "fathom/weights/export/checkpoint_writer.h"
#include "fathom/weights/export/quant_declaration.h"
#include "fathom/weights/export/quantize_tensor.h"

namespace fathom {
namespace {

constexpr int64_t kVocab = 320;  // bytes, control tokens, and some ids without a token
constexpr int64_t kFirstByteId = 3;

Json integer(int64_t value) {
  return Json::integer(value);
}

// What distinguishes the families, for a model of these sizes.
Json make_config(const SynthOptions& o) {
  const bool v2 = o.version == "v2" || o.version == "v2-lite";
  const bool lite = o.version == "v2-lite";
  std::vector<JsonMember> m{
      {"architectures",
       Json::array({Json::string(v2 ? "DeepseekV2ForCausalLM" : "DeepseekV3ForCausalLM")})},
      {"model_type", Json::string(v2 ? "deepseek_v2" : "deepseek_v3")},
      {"hidden_size", integer(o.hidden)},
      {"num_hidden_layers", integer(o.layers)},
      {"num_attention_heads", integer(4)},
      {"num_key_value_heads", integer(4)},
      {"q_lora_rank", lite ? Json{} : integer(128)},
      {"kv_lora_rank", integer(64)},
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
      {"vocab_size", integer(kVocab)},
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
  return Json::object(std::move(m));
}

Json added_token(int64_t id, const char* content, bool special) {
  return Json::object({{"id", integer(id)},
                       {"content", Json::string(content)},
                       {"single_word", Json::boolean(false)},
                       {"lstrip", Json::boolean(false)},
                       {"rstrip", Json::boolean(false)},
                       {"normalized", Json::boolean(false)},
                       {"special", Json::boolean(special)}});
}

Json split(const char* pattern) {
  return Json::object({{"type", Json::string("Split")},
                       {"pattern", Json::object({{"Regex", Json::string(pattern)}})},
                       {"behavior", Json::string("Isolated")},
                       {"invert", Json::boolean(false)}});
}

// Every byte is a token of its own; there are no merges.
Json make_tokenizer() {
  constexpr const char* kMain =
      "[!\"#$%&'()*+,\\-./"
      ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
      " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
  std::vector<JsonMember> vocabulary;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    vocabulary.emplace_back(byte_level_encode(std::string_view(&byte, 1)),
                            integer(kFirstByteId + b));
  }
  std::vector<Json> added{added_token(0, "<｜begin▁of▁sentence｜>", true),
                          added_token(1, "<｜end▁of▁sentence｜>", true),
                          added_token(2, "<｜▁pad▁｜>", true)};
  int64_t next = kFirstByteId + 256;
  for (const char* text :
       {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>",
        "<｜tool▁output▁end｜>", "<｜tool▁sep｜>"}) {
    added.push_back(added_token(next++, text, false));
  }
  return Json::object(
      {{"version", Json::string("1.0")},
       {"added_tokens", Json::array(std::move(added))},
       {"normalizer",
        Json::object({{"type", Json::string("Sequence")}, {"normalizers", Json::array()}})},
       {"pre_tokenizer",
        Json::object(
            {{"type", Json::string("Sequence")},
             {"pretokenizers",
              Json::array({split("\\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(kMain),
                           Json::object({{"type", Json::string("ByteLevel")},
                                         {"add_prefix_space", Json::boolean(false)},
                                         {"trim_offsets", Json::boolean(true)},
                                         {"use_regex", Json::boolean(false)}})})}})},
       {"decoder", Json::object({{"type", Json::string("ByteLevel")}})},
       {"model", Json::object({{"type", Json::string("BPE")},
                               {"vocab", Json::object(std::move(vocabulary))},
                               {"merges", Json::array()}})}});
}

Json make_tokenizer_config() {
  return Json::object({{"add_bos_token", Json::boolean(true)},
                       {"add_eos_token", Json::boolean(false)},
                       {"bos_token", Json::string("<｜begin▁of▁sentence｜>")},
                       {"eos_token", Json::string("<｜end▁of▁sentence｜>")},
                       {"tokenizer_class", Json::string("LlamaTokenizerFast")}});
}

// Weights of unit gain: activations keep their size through a layer. Norms are near 1; biases and
// the router spread enough that experts differ.
std::vector<float> random_tensor(const WeightSpec& spec, uint64_t seed) {
  const auto digest = sha256(str_cat(seed, " ", spec.name));
  uint64_t key = 0;
  std::memcpy(&key, digest.data(), sizeof key);
  const int64_t count = spec.numel();
  const bool norm = spec.role == WeightRole::kNorm;
  const double columns = spec.dims.size() > 1 ? static_cast<double>(spec.dims.back()) : 1.0;
  const double deviation = norm                                   ? 0.1
                           : spec.role == WeightRole::kRouterBias ? 0.05
                           : spec.role == WeightRole::kEmbedding  ? 1.0
                                                                  : 1.0 / std::sqrt(columns);
  Rng rng(key);
  std::vector<float> w(static_cast<size_t>(count));
  for (float& x : w) {
    x = static_cast<float>((norm ? 1.0 : 0.0) + deviation * static_cast<double>(rng.next_normal()));
  }
  return w;
}

struct Output {
  WeightSpec spec;
  size_t part = 0;
};

Result<std::vector<StoredTensor>> make_tensors(const WeightSpec& spec, uint64_t seed) {
  const std::vector<float> w = random_tensor(spec, seed);
  const int64_t k = spec.dims.back();
  FATHOM_ASSIGN(QuantizedMatrix q, quantize_matrix(w, spec.numel() / k, k, spec.format, spec.name));
  if (q.tensors.size() == 1) {
    q.tensors[0].name = spec.name;  // biases do not end in ".weight"
    q.tensors[0].shape = spec.dims;
  }
  return std::move(q.tensors);
}

Status check_options(const SynthOptions& o) {
  const auto versions = synth_versions();
  if (std::find(versions.begin(), versions.end(), o.version) == versions.end()) {
    return invalid_argument(
        str_cat("--version is '", o.version, "'; known are v2-lite, v2, v3, r1"));
  }
  const auto range = [](const char* flag, int64_t value, int64_t low, int64_t high,
                        int64_t multiple) -> Status {
    if (value >= low && value <= high && value % multiple == 0) return {};
    return invalid_argument(str_cat(flag, " is ", value, ", expected a multiple of ", multiple,
                                    " from ", low, " to ", high));
  };
  FATHOM_TRY(range("--layers", o.layers, 1, 128, 1));
  FATHOM_TRY(range("--hidden", o.hidden, 64, 16384, 64));
  FATHOM_TRY(range("--experts", o.experts, 8, 1024, 4));
  for (const Format format : {Format::kBf16, Format::kFp8Block, Format::kNvfp4}) {
    if (o.format == format) return {};
  }
  return invalid_argument(str_cat("--format is ", format_name(o.format),
                                  ", expected bf16, fp8_block or nvfp4; fathom quantize makes "
                                  "others from a checkpoint"));
}

}  // namespace

std::vector<std::string> synth_versions() {
  return {"v2-lite", "v2", "v3", "r1"};
}

Result<SynthReport> synthesize_checkpoint(const std::string& directory,
                                          const SynthOptions& options) {
  FATHOM_TRY(check_options(options));
  const Json config_json = make_config(options);
  std::string config_text = dump_json(config_json, JsonStyle::kIndented) + "\n";
  FATHOM_ASSIGN(const ModelConfig config, parse_config(config_text));
  FATHOM_ASSIGN(const PresetFormats formats, preset_formats(format_name(options.format), config));
  FATHOM_ASSIGN(const std::unique_ptr<Model> model, create_model(config, ModelOptions{}));
  WeightPlan weight_plan(config.symbols(), formats_of(formats));
  FATHOM_TRY(model->declare_weights(weight_plan));

  TensorPlan plan;
  std::vector<Output> outputs;
  std::vector<ModuleFormat> modules;
  SynthReport report;
  for (const WeightItem& item : weight_plan.items()) {
    for (const WeightSpec& spec : item.sources) {
      const int64_t k = spec.dims.back();
      FATHOM_ASSIGN(auto tensors,
                    plan_quantised_matrix(spec.name, spec.numel() / k, k, spec.format));
      if (tensors.size() == 1) {
        tensors[0].name = spec.name;
        tensors[0].shape = spec.dims;
      }
      if (spec.dims.size() == 2)
        modules.push_back({spec.name.substr(0, spec.name.rfind('.')), spec.format});
      for (size_t part = 0; part < tensors.size(); ++part) {
        plan.push_back({.name = tensors[part].name,
                        .dtype = tensors[part].dtype,
                        .shape = tensors[part].shape});
        outputs.push_back({spec, part});
      }
      report.parameters += spec.numel();
    }
  }

  const QuantDeclaration declared = declare_quantization(modules, FATHOM_VERSION);
  FATHOM_ASSIGN(config_text, rewrite_config(config_text, declared.quantization_config, true));
  CheckpointWriterOptions writer;
  writer.source_digest = to_hex(sha256(config_text));
  writer.options = str_cat("synth seed=", options.seed);
  writer.side_files = {
      {"config.json", config_text},
      {"generation_config.json", "{\"bos_token_id\": 0, \"eos_token_id\": 1}\n"},
      {"tokenizer.json", dump_json(make_tokenizer()) + "\n"},
      {"tokenizer_config.json", dump_json(make_tokenizer_config(), JsonStyle::kIndented) + "\n"}};
  if (!declared.sidecar.empty()) {
    writer.side_files.emplace_back("hf_quant_config.json", declared.sidecar);
  }
  std::string cached_name;
  std::vector<StoredTensor> cached;
  FATHOM_ASSIGN(
      const WriteReport written,
      write_checkpoint(directory, plan, writer, [&](size_t tensor, TensorSink& sink) -> Status {
        const Output& out = outputs[tensor];
        if (cached_name != out.spec.name) {
          FATHOM_ASSIGN(cached, make_tensors(out.spec, options.seed));
          cached_name = out.spec.name;
        }
        return sink.append(cached[out.part].bytes);
      }));
  report.bytes = written.data_bytes;
  return report;
}

}  // namespace fathom
