#include "fathom/weights/checkpoint/quant_config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "fathom/base/ascii.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"
#include "fathom/text/file_kind.h"
#include "fathom/weights/checkpoint/safetensors.h"

namespace fathom {
namespace {

constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kSidecarName = "hf_quant_config.json";
constexpr int64_t kMaxConfigBytes = 4ll << 20;

constexpr std::array<std::string_view, 11> kAlgoNames = {
    "none",  "fp8_block",    "fp8_channel", "fp8_tensor", "nvfp4", "mxfp4",
    "mxfp8", "int8_channel", "int8_block",  "w4fp8",      "mixed"};
constexpr std::array<std::string_view, 4> kKvNames = {"none", "fp8", "int8", "nvfp4"};

struct Spelling {
  std::string_view name;  // lower case
  QuantAlgo algo;
};

// quant_method of config.json. kNone: the algorithm stands in other keys.
constexpr std::array<Spelling, 12> kMethods = {{{"fp8", QuantAlgo::kFp8Block},
                                                {"modelopt", QuantAlgo::kNone},
                                                {"modelopt_fp4", QuantAlgo::kNone},
                                                {"modelopt_fp8", QuantAlgo::kNone},
                                                {"modelopt_mixed", QuantAlgo::kNone},
                                                {"compressed-tensors", QuantAlgo::kNone},
                                                {"mxfp4", QuantAlgo::kMxfp4},
                                                {"mxfp8", QuantAlgo::kMxfp8},
                                                {"w8a8_int8", QuantAlgo::kInt8Channel},
                                                {"blockwise_int8", QuantAlgo::kInt8Block},
                                                {"w8a8_fp8", QuantAlgo::kFp8Channel},
                                                {"w4afp8", QuantAlgo::kW4Fp8}}};

// quant_algo of ModelOpt.
constexpr std::array<Spelling, 8> kAlgorithms = {
    {{"nvfp4", QuantAlgo::kNvfp4},
     {"fp8", QuantAlgo::kFp8Tensor},
     {"fp8_per_channel_per_token", QuantAlgo::kFp8Channel},
     {"fp8_pb_wo", QuantAlgo::kFp8Block},
     {"mxfp4", QuantAlgo::kMxfp4},
     {"mxfp8", QuantAlgo::kMxfp8},
     {"w4a8_fp8", QuantAlgo::kW4Fp8},
     {"mixed_precision", QuantAlgo::kMixed}}};

std::optional<QuantAlgo> find_spelling(std::span<const Spelling> table, std::string_view name) {
  const std::string wanted = ascii_lower(name);
  for (const Spelling& spelling : table) {
    if (spelling.name == wanted) return spelling.algo;
  }
  return std::nullopt;
}

std::string list_spellings(std::span<const Spelling> table) {
  std::string names;
  for (const Spelling& spelling : table) {
    str_append(names, names.empty() ? "" : ", ");
    str_append(names, spelling.name);
  }
  return names;
}

// One object of declarations, with typed access to its members. `where` begins its messages.
class Declaration {
 public:
  Declaration(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  Status wrong(std::string_view key, const Json& found, std::string_view expected) const {
    return corrupt(str_cat(where_, ": ", key, " is ", found.kind_name(), ", expected ", expected));
  }

  // Null where the key is absent or its value null.
  const Json* find(std::string_view key) const {
    const Json* value = json_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  Result<std::string> text(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::string();
    if (!value->is_string()) return wrong(key, *value, "a string");
    return value->as_string();
  }

  // 0 where absent.
  Result<int64_t> size(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return int64_t{0};
    if (!value->is_int()) return wrong(key, *value, "an integer");
    if (value->as_int() <= 0 || value->as_int() > 65'536) {
      return corrupt(str_cat(where_, ": ", key, " is ", value->as_int(), ", expected 1 to 65536"));
    }
    return value->as_int();
  }

  // Appends the strings under `key` that are new.
  Status list(std::string_view key, std::vector<std::string>& out) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) return wrong(key, *value, "an array of strings");
    for (const Json& item : value->items()) {
      if (!item.is_string()) return wrong(str_cat("an element of ", key), item, "a string");
      out.push_back(item.as_string());
    }
    return {};
  }

  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
};

Result<QuantAlgo> parse_algorithm(const Declaration& d, const std::string& name) {
  if (name.empty()) return QuantAlgo::kNone;
  if (const auto algo = find_spelling(kAlgorithms, name)) return *algo;
  return unsupported(str_cat(d.where(), ": quant_algo ", quoted(name),
                             " is unknown, expected one of ", list_spellings(kAlgorithms)));
}

Status parse_block(const Declaration& d, QuantConfig& out) {
  constexpr std::string_view kKey = "weight_block_size";
  const Json* block = d.find(kKey);
  if (block == nullptr) return {};
  const bool is_pair = block->is_array() && block->items().size() == 2 &&
                       block->items()[0].is_int() && block->items()[1].is_int();
  if (!is_pair) return corrupt(str_cat(d.where(), ": ", kKey, ", expected two integers"));
  out.block_n = block->items()[0].as_int();
  out.block_k = block->items()[1].as_int();
  if (out.block_n == 128 && out.block_k == 128) return {};
  return unsupported(str_cat(d.where(), ": ", kKey, " is [", out.block_n, ", ", out.block_k,
                             "], expected [128, 128]"));
}

// kv_cache_quant_algo of ModelOpt's file, kv_cache_scheme of config.json.
Status parse_kv(const Declaration& d, QuantConfig& out) {
  FATHOM_ASSIGN(const std::string algo, d.text("kv_cache_quant_algo"));
  if (!algo.empty()) {
    const auto* found = std::find(kKvNames.begin(), kKvNames.end(), ascii_lower(algo));
    if (found == kKvNames.end()) {
      return unsupported(str_cat(d.where(), ": kv_cache_quant_algo ", quoted(algo),
                                 " is unknown, expected FP8, INT8, NVFP4 or null"));
    }
    out.kv_cache = static_cast<KvQuant>(found - kKvNames.begin());
  }
  const Json* scheme = d.find("kv_cache_scheme");
  if (scheme == nullptr) return {};
  if (!scheme->is_object()) return d.wrong("kv_cache_scheme", *scheme, "an object");
  const Declaration inner(*scheme, str_cat(d.where(), ".kv_cache_scheme"));
  FATHOM_ASSIGN(const std::string type, inner.text("type"));
  FATHOM_ASSIGN(const int64_t bits, inner.size("num_bits"));
  if (type == "float" && bits == 8) {
    out.kv_cache = KvQuant::kFp8;
  } else if (type == "float" && bits == 4) {
    out.kv_cache = KvQuant::kNvfp4;
  } else if (type == "int" && bits == 8) {
    out.kv_cache = KvQuant::kInt8;
  } else {
    return unsupported(str_cat(inner.where(), ": ", bits, " bits of type ", quoted(type),
                               ", expected 8 or 4 bits of float or 8 of int"));
  }
  return {};
}

// The one group of a compressed-tensors declaration, "config_groups": {"group_0": {"weights":
// ...}}.
Result<QuantAlgo> parse_groups(const Declaration& d) {
  const Json* groups = d.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->members().empty()) {
    return corrupt(str_cat(d.where(), ": config_groups is ",
                           groups == nullptr ? "absent" : groups->kind_name(),
                           ", expected an object with a group"));
  }
  if (groups->members().size() > 1) return QuantAlgo::kMixed;
  const auto& [name, group] = groups->members().front();
  const std::string where = str_cat(d.where(), ".config_groups.", quoted(name), ".weights");
  const Json* weights = group.find("weights");
  if (weights == nullptr || !weights->is_object()) {
    return corrupt(str_cat(where, " is ", weights == nullptr ? "absent" : weights->kind_name(),
                           ", expected an object"));
  }
  const Declaration w(*weights, where);
  FATHOM_ASSIGN(const std::string type, w.text("type"));
  FATHOM_ASSIGN(const std::string strategy, w.text("strategy"));
  FATHOM_ASSIGN(const int64_t bits, w.size("num_bits"));
  if (type == "float" && bits == 8 && strategy == "block") return QuantAlgo::kFp8Block;
  if (type == "float" && bits == 8 && strategy == "channel") return QuantAlgo::kFp8Channel;
  if (type == "float" && bits == 8 && strategy == "tensor") return QuantAlgo::kFp8Tensor;
  if (type == "float" && bits == 8 && strategy == "group") {
    FATHOM_ASSIGN(const int64_t size, w.size("group_size"));
    if (size == 32) return QuantAlgo::kMxfp8;
    return unsupported(str_cat(where, ": group_size is ", size, ", expected 32 for mxfp8"));
  }
  if (type == "int" && bits == 8 && strategy == "channel") return QuantAlgo::kInt8Channel;
  return unsupported(str_cat(where, ": ", bits, " bits of type ", quoted(type), " by ",
                             quoted(strategy),
                             ", expected 8 bits of float by block, channel, tensor or group, or of "
                             "int by channel"));
}

// Sizes that follow from the algorithm, where the declaration is silent; another size is none of
// the formats.
Status settle_sizes(const Declaration& d, QuantConfig& out) {
  const bool has_blocks = out.algo == QuantAlgo::kFp8Block || out.algo == QuantAlgo::kInt8Block ||
                          out.algo == QuantAlgo::kW4Fp8;
  if (has_blocks && out.block_n == 0) out.block_n = out.block_k = 128;
  int64_t group = 0;
  if (out.algo == QuantAlgo::kNvfp4) group = 16;
  if (out.algo == QuantAlgo::kMxfp4 || out.algo == QuantAlgo::kMxfp8) group = 32;
  if (out.algo == QuantAlgo::kW4Fp8) group = 128;
  if (group == 0) return {};  // the key may be there and mean nothing
  if (out.group_size == 0) out.group_size = group;
  if (out.group_size == group) return {};
  return unsupported(str_cat(d.where(), ": group_size is ", out.group_size, ", expected ", group,
                             " for ", quant_algo_name(out.algo)));
}

Status parse_lists(const Declaration& d, QuantConfig& out) {
  for (const std::string_view key :
       {"exclude_modules", "ignore", "ignored_layers", "modules_to_not_convert"}) {
    FATHOM_TRY(d.list(key, out.exclude));
  }
  return {};
}

Status parse_scale_format(const Declaration& d, QuantConfig& out) {
  FATHOM_ASSIGN(const std::string element, d.text("fmt"));
  if (!element.empty() && ascii_lower(element) != "e4m3") {
    return unsupported(str_cat(d.where(), ": fmt ", quoted(element), ", expected \"e4m3\""));
  }
  FATHOM_ASSIGN(const std::string scale, d.text("scale_fmt"));
  out.ue8m0_scales = ascii_lower(scale) == "ue8m0";
  if (scale.empty() || out.ue8m0_scales || ascii_lower(scale) == "float32" ||
      ascii_lower(scale) == "float") {
    return {};
  }
  return unsupported(
      str_cat(d.where(), ": scale_fmt ", quoted(scale), ", expected \"ue8m0\" or \"float32\""));
}

// ModelOpt's own layout: {"producer": ..., "quantization": {"quant_algo": "NVFP4", ...}}.
Result<QuantConfig> parse_modelopt(const Json& root, std::string_view source, std::string where) {
  const Json* json = root.find("quantization");
  if (json == nullptr || !json->is_object()) {
    return corrupt(str_cat(where, " is ", json == nullptr ? "absent" : json->kind_name(),
                           ", expected an object"));
  }
  const Declaration d(*json, std::move(where));
  QuantConfig out;
  out.source = source;
  FATHOM_ASSIGN(out.method, d.text("quant_algo"));
  FATHOM_ASSIGN(out.algo, parse_algorithm(d, out.method));
  FATHOM_ASSIGN(out.group_size, d.size("group_size"));
  FATHOM_TRY(settle_sizes(d, out));
  FATHOM_TRY(parse_kv(d, out));
  FATHOM_TRY(parse_lists(d, out));
  return out;
}

Result<QuantConfig> parse_sidecar(const Json& root) {
  return parse_modelopt(root, kSidecarName, str_cat(kSidecarName, ": quantization"));
}

Result<QuantConfig> parse_config(const Json& json) {
  if (!json.is_object()) {
    return corrupt(str_cat(kConfigName, ": quantization_config is ", json.kind_name(),
                           ", expected an object"));
  }
  const Declaration d(json, str_cat(kConfigName, ": quantization_config"));
  if (d.find("quant_method") == nullptr && d.find("quantization") != nullptr) {
    // Early exports copied ModelOpt's file into config.json as it was.
    return parse_modelopt(json, kConfigName, str_cat(d.where(), ".quantization"));
  }
  QuantConfig out;
  out.source = kConfigName;
  FATHOM_ASSIGN(out.method, d.text("quant_method"));
  FATHOM_ASSIGN(const std::string algorithm, d.text("quant_algo"));
  const auto method = find_spelling(kMethods, out.method);
  if (!method && (!out.method.empty() || algorithm.empty())) {
    return unsupported(str_cat(d.where(), ": quant_method ", quoted(out.method),
                               " is unknown, expected one of ", list_spellings(kMethods)));
  }
  if (out.method.empty()) out.method = algorithm;
  FATHOM_ASSIGN(out.group_size, d.size("group_size"));
  FATHOM_TRY(parse_block(d, out));
  FATHOM_TRY(parse_scale_format(d, out));
  if (!algorithm.empty()) {
    // Also beside quant_method "fp8": FP8 checkpoints with NVFP4 experts say so here.
    FATHOM_ASSIGN(out.algo, parse_algorithm(d, algorithm));
  } else if (ascii_lower(out.method) == "fp8" && out.block_n == 0) {
    out.algo = QuantAlgo::kFp8Tensor;
  } else if (ascii_lower(out.method) == "compressed-tensors") {
    FATHOM_ASSIGN(out.algo, parse_groups(d));
  } else {
    out.algo = *method;
  }
  FATHOM_TRY(settle_sizes(d, out));
  FATHOM_TRY(parse_kv(d, out));
  FATHOM_TRY(parse_lists(d, out));
  return out;
}

// Both sources speak of the same files: where they differ, one of them is wrong.
Status compare(std::string_view what, std::string_view config, std::string_view sidecar) {
  if (config == sidecar) return {};
  return corrupt(str_cat(what, " is ", config, " in ", kConfigName, ": quantization_config and ",
                         sidecar, " in ", kSidecarName, "; one of the two files is wrong"));
}

Result<QuantConfig> merge(QuantConfig config, const QuantConfig& sidecar) {
  FATHOM_TRY(
      compare("the quantisation", quant_algo_name(config.algo), quant_algo_name(sidecar.algo)));
  FATHOM_TRY(
      compare("the KV cache", kv_quant_name(config.kv_cache), kv_quant_name(sidecar.kv_cache)));
  if (config.group_size != 0 && sidecar.group_size != 0) {
    FATHOM_TRY(compare("group_size", str_cat(config.group_size), str_cat(sidecar.group_size)));
  }
  config.source = str_cat(kConfigName, " and ", kSidecarName);
  if (config.group_size == 0) config.group_size = sidecar.group_size;
  for (const std::string& pattern : sidecar.exclude)
    config.exclude.push_back(pattern);
  return config;
}

Result<std::optional<Json>> read_json(const std::string& directory, std::string_view name) {
  const std::string path = join_path(directory, name);
  const Result<std::string> text = read_file(path, kMaxConfigBytes);
  if (!text.ok()) {
    if (text.status().code() == StatusCode::kNotFound) return std::optional<Json>();
    return Status::error(text.status().code(), text.status().message());
  }
  const JsonLimits limits{.max_bytes = kMaxConfigBytes,
                          .big_integer = JsonLimits::BigInteger::kRound};
  FATHOM_ASSIGN(Json json, parse_json_file(*text, limits, path));
  return std::optional<Json>(std::move(json));
}

}  // namespace

std::string_view quant_algo_name(QuantAlgo algo) {
  return kAlgoNames[static_cast<size_t>(algo)];
}

std::string_view kv_quant_name(KvQuant kv) {
  return kKvNames[static_cast<size_t>(kv)];
}

bool matches_glob(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last '*', and where its text may end next
  size_t retry = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

bool QuantConfig::excludes(std::string_view module) const {
  for (const std::string& pattern : exclude) {
    if (pattern.starts_with("re:")) continue;
    for (size_t end = module.find('.');; end = module.find('.', end + 1)) {
      if (matches_glob(pattern, module.substr(0, end))) return true;
      if (end == std::string_view::npos) break;
    }
  }
  return false;
}

Result<QuantConfig> parse_quant_config(const Json* config, const Json* sidecar) {
  const Json* declared = config == nullptr ? nullptr : config->find("quantization_config");
  if (declared != nullptr && declared->is_null()) declared = nullptr;
  if (declared == nullptr && sidecar == nullptr) return QuantConfig{};
  if (declared == nullptr) return parse_sidecar(*sidecar);
  FATHOM_ASSIGN(QuantConfig from_config, parse_config(*declared));
  if (sidecar == nullptr) return from_config;
  FATHOM_ASSIGN(const QuantConfig from_sidecar, parse_sidecar(*sidecar));
  return merge(std::move(from_config), from_sidecar);
}

Result<QuantConfig> read_quant_config(const std::string& directory) {
  FATHOM_ASSIGN(const std::optional<Json> config, read_json(directory, kConfigName));
  return read_quant_config(directory, config ? &*config : nullptr);
}

Result<QuantConfig> read_quant_config(const std::string& directory, const Json* config) {
  FATHOM_ASSIGN(const std::optional<Json> sidecar, read_json(directory, kSidecarName));
  Result<QuantConfig> result = parse_quant_config(config, sidecar ? &*sidecar : nullptr);
  if (result.ok()) return result;
  return std::move(std::move(result).status()).add_context(directory);
}

}  // namespace fathom
