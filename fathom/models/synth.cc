#include "fathom/models/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "fathom/base/rng.h"
#include "fathom/models/config/presets.h"
#include "fathom/models/registry.h"
#include "fathom/models/synth_config.h"
#include "fathom/os/sha256.h"
#include "fathom/text/byte_level.h"
#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "fathom/weights/export/checkpoint_writer.h"
#include "fathom/weights/export/quant_declaration.h"
#include "fathom/weights/export/quantize_tensor.h"

namespace fathom {
namespace {

constexpr int64_t kFirstByteId = 3;

constexpr std::string_view kVersions[] = {"v1", "v2-lite", "v2", "v3", "r1", "v3.2", "v4"};
constexpr FormatChoice kFormats[] = {{"bf16", Format::kBf16},
                                     {"fp8_block", Format::kFp8Block},
                                     {"nvfp4", Format::kNvfp4},
                                     {"mxfp4", Format::kMxfp4}};

Json integer(int64_t value) {
  return Json::integer(value);
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
Json make_tokenizer(const SynthOptions& options) {
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
  if (options.version == "v3.2" || options.version == "v4") {
    added.push_back(added_token(next++, "｜DSML｜", false));
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

// Every tensor has a stream of its own, by its name.
Rng rng_of(const std::string& name, uint64_t seed) {
  const auto digest = sha256(str_cat(seed, " ", name));
  uint64_t key = 0;
  std::memcpy(&key, digest.data(), sizeof key);
  return Rng(key);
}

double deviation_of(const WeightSpec& spec) {
  if (spec.role == WeightRole::kNorm) return 0.1;
  if (spec.role == WeightRole::kRouterBias) return 0.05;
  if (spec.role == WeightRole::kEmbedding) return 1.0;
  return 1.0 / std::sqrt(spec.dims.size() > 1 ? static_cast<double>(spec.dims.back()) : 1.0);
}

// Weights of unit gain: activations keep their size through a layer. Norms are near 1; biases and
// the router spread enough that experts differ.
std::vector<float> random_tensor(const WeightSpec& spec, uint64_t seed) {
  const bool near_one = spec.role == WeightRole::kNorm && !spec.name.ends_with(".bias");
  const double deviation = deviation_of(spec);
  Rng rng = rng_of(spec.name, seed);
  std::vector<float> w(static_cast<size_t>(spec.numel()));
  for (float& x : w) {
    x = static_cast<float>((near_one ? 1.0 : 0.0) +
                           deviation * static_cast<double>(rng.next_normal()));
  }
  return w;
}

// [V, K] i64: each token's experts, no two of them equal.
StoredTensor random_routes(const WeightSpec& spec, int64_t num_experts, uint64_t seed) {
  Rng rng = rng_of(spec.name, seed);
  std::vector<int64_t> experts(static_cast<size_t>(num_experts));
  std::iota(experts.begin(), experts.end(), int64_t{0});
  const int64_t chosen = spec.dims[1];
  StoredTensor t{.name = spec.name, .dtype = Format::kI64, .shape = spec.dims, .bytes = {}};
  t.bytes.resize(static_cast<size_t>(spec.numel()) * sizeof(int64_t));
  for (int64_t row = 0; row < spec.dims[0]; ++row) {
    for (int64_t i = 0; i < chosen; ++i) {
      const auto rest = static_cast<uint32_t>(num_experts - i);
      std::swap(experts[static_cast<size_t>(i)],
                experts[static_cast<size_t>(i) + rng.next_below(rest)]);
    }
    std::memcpy(t.bytes.data() + row * chosen * 8, experts.data(),
                static_cast<size_t>(chosen) * sizeof(int64_t));
  }
  return t;
}

// V4's w1 and w3, which engines fuse: w3 for w1 and the other way round; empty for other weights.
std::string fused_with(const std::string& weight) {
  for (const auto& [own, other] :
       {std::pair{".w1.weight", ".w3.weight"}, std::pair{".w3.weight", ".w1.weight"}}) {
    const std::string_view end(own);
    if (weight.ends_with(end)) return weight.substr(0, weight.size() - end.size()) + other;
  }
  return {};
}

struct Output {
  WeightSpec spec;
  size_t part = 0;
};

Result<std::vector<StoredTensor>> make_tensors(const WeightSpec& spec,
                                               const SynthOptions& options) {
  if (spec.format == Format::kI64) {
    return std::vector<StoredTensor>{random_routes(spec, options.experts, options.seed)};
  }
  const std::vector<float> w = random_tensor(spec, options.seed);
  const int64_t k = spec.dims.back();
  std::optional<float> amax;
  if (const std::string other = fused_with(spec.name);
      spec.format == Format::kNvfp4 && !other.empty()) {
    WeightSpec partner = spec;
    partner.name = other;
    FATHOM_ASSIGN(const float own, matrix_amax(w, spec.name));
    FATHOM_ASSIGN(const float of_other, matrix_amax(random_tensor(partner, options.seed), other));
    amax = std::max(own, of_other);
  }
  FATHOM_ASSIGN(QuantizedMatrix q,
                quantize_matrix(w, spec.numel() / k, k, spec.format, spec.name, amax));
  if (q.tensors.size() == 1) {
    q.tensors[0].name = spec.name;  // biases do not end in ".weight"
    q.tensors[0].shape = spec.dims;
  }
  return std::move(q.tensors);
}

// Names, dtypes and shapes of what make_tensors would give.
Result<std::vector<StoredTensor>> plan_tensors(const WeightSpec& spec) {
  if (spec.format == Format::kI64) {
    return std::vector<StoredTensor>{
        {.name = spec.name, .dtype = Format::kI64, .shape = spec.dims, .bytes = {}}};
  }
  const int64_t k = spec.dims.back();
  FATHOM_ASSIGN(auto tensors, plan_quantised_matrix(spec.name, spec.numel() / k, k, spec.format));
  if (tensors.size() == 1) {
    tensors[0].name = spec.name;
    tensors[0].shape = spec.dims;
  }
  return tensors;
}

std::string joined(std::span<const std::string_view> words) {
  std::string out;
  for (const std::string_view word : words)
    str_append(out, str_cat(out.empty() ? "" : ", ", word));
  return out;
}

Status check_format(const SynthOptions& o) {
  if (std::none_of(std::begin(kFormats), std::end(kFormats),
                   [&](const FormatChoice& known) { return known.format == o.format; })) {
    return invalid_argument(str_cat("--format is ", format_name(o.format), ", expected ",
                                    format_names(kFormats),
                                    "; fathom quantize makes others from a checkpoint"));
  }
  if (o.format == Format::kMxfp4 && o.version != "v4") {
    return invalid_argument(str_cat("--format is mxfp4, expected bf16, fp8_block or nvfp4 for ",
                                    "--version ", o.version, "; only v4 has experts in mxfp4"));
  }
  return {};
}

Status check_options(const SynthOptions& o) {
  if (std::find(std::begin(kVersions), std::end(kVersions), o.version) == std::end(kVersions)) {
    return invalid_argument(
        str_cat("--version is '", o.version, "'; known are ", joined(kVersions)));
  }
  const auto range = [](const char* flag, int64_t value, int64_t low, int64_t high,
                        int64_t multiple) -> Status {
    if (value >= low && value <= high && value % multiple == 0) return {};
    return invalid_argument(str_cat(flag, " is ", value, ", expected a multiple of ", multiple,
                                    " from ", low, " to ", high));
  };
  // V4 has three kinds of attention, and one layer at least of each.
  FATHOM_TRY(range("--layers", o.layers, o.version == "v4" ? 3 : 1, 128, 1));
  FATHOM_TRY(range("--hidden", o.hidden, 64, 16384, 64));
  FATHOM_TRY(range("--experts", o.experts, 8, 1024, 4));
  if (o.kv_heads != 1 && o.kv_heads != 2 && o.kv_heads != 4) {
    return invalid_argument(str_cat("kv_heads is ", o.kv_heads, ", expected 1, 2 or 4"));
  }
  return check_format(o);
}

// What config.json of V4 says of its experts beside quantization_config.
std::string_view expert_dtype(const SynthOptions& o) {
  if (o.version != "v4" || o.format == Format::kBf16) return {};
  return o.format == Format::kFp8Block ? "fp8" : "fp4";
}

}  // namespace

std::span<const std::string_view> synth_versions() {
  return kVersions;
}

std::span<const FormatChoice> synth_formats() {
  return kFormats;
}

Result<SynthReport> synthesize_checkpoint(const std::string& directory,
                                          const SynthOptions& options) {
  FATHOM_TRY(check_options(options));
  const Json config_json = synth_config(options);
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
      FATHOM_ASSIGN(const auto tensors, plan_tensors(spec));
      if (spec.dims.size() == 2 && spec.name.ends_with(".weight"))
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
  FATHOM_ASSIGN(config_text, rewrite_config(config_text, declared.quantization_config, true,
                                            expert_dtype(options)));
  CheckpointWriterOptions writer;
  writer.source_digest = to_hex(sha256(config_text));
  writer.options = str_cat("synth seed=", options.seed);
  writer.side_files = {
      {"config.json", config_text},
      {"generation_config.json", "{\"bos_token_id\": 0, \"eos_token_id\": 1}\n"},
      {"tokenizer.json", dump_json(make_tokenizer(options)) + "\n"},
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
          FATHOM_ASSIGN(cached, make_tensors(out.spec, options));
          cached_name = out.spec.name;
        }
        if (options.progress) {
          options.progress(static_cast<int64_t>(tensor), static_cast<int64_t>(plan.size()));
        }
        return sink.append(cached[out.part].bytes);
      }));
  report.bytes = written.data_bytes;
  return report;
}

}  // namespace fathom
