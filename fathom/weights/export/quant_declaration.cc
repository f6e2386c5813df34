#include "fathom/weights/export/quant_declaration.h"

#include <algorithm>

#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

constexpr JsonLimits kConfigLimits{.big_integer = JsonLimits::BigInteger::kRound};

Json string_list(const std::vector<std::string>& names) {
  std::vector<Json> items;
  for (const std::string& name : names)
    items.push_back(Json::string(name));
  return Json::array(std::move(items));
}

std::string indented(std::vector<JsonMember> members) {
  return dump_json(Json::object(std::move(members)), JsonStyle::kIndented);
}

// ModelOpt's own file.
std::string modelopt_file(std::string_view algo,
                          int64_t group_size,
                          const std::vector<std::string>& excluded,
                          std::string_view tool_version) {
  return indented(
             {{"producer", Json::object({{"name", Json::string("fathom")},
                                         {"version", Json::string(std::string(tool_version))}})},
              {"quantization", Json::object({{"quant_algo", Json::string(std::string(algo))},
                                             {"kv_cache_quant_algo", Json{}},
                                             {"group_size", Json::integer(group_size)},
                                             {"exclude_modules", string_list(excluded)}})}}) +
         "\n";
}

std::vector<JsonMember> fp8_members(bool ue8m0) {
  std::vector<JsonMember> members = {{"quant_method", Json::string("fp8")},
                                     {"fmt", Json::string("e4m3")}};
  if (ue8m0) members.emplace_back("scale_fmt", Json::string("ue8m0"));
  members.emplace_back("activation_scheme", Json::string("dynamic"));
  members.emplace_back("weight_block_size", Json::array({Json::integer(128), Json::integer(128)}));
  return members;
}

QuantDeclaration declare_one(Format format,
                             const std::vector<std::string>& excluded,
                             std::string_view tool_version) {
  if (format == Format::kNvfp4 || format == Format::kMxfp8) {
    const std::string algo = format == Format::kNvfp4 ? "NVFP4" : "MXFP8";
    const int64_t group = format_info(format).block_k;
    return {.quantization_config = indented({{"quant_method", Json::string("modelopt")},
                                             {"quant_algo", Json::string(algo)},
                                             {"group_size", Json::integer(group)},
                                             {"ignore", string_list(excluded)}}),
            .sidecar = modelopt_file(algo, group, excluded, tool_version)};
  }
  QuantDeclaration out;
  if (format == Format::kFp8Block || format == Format::kFp8BlockUe8m0) {
    out.quantization_config = indented(fp8_members(format == Format::kFp8BlockUe8m0));
  } else if (format == Format::kMxfp4) {
    out.quantization_config = indented({{"quant_method", Json::string("mxfp4")},
                                        {"modules_to_not_convert", string_list(excluded)}});
  } else if (format == Format::kInt8Channel) {
    out.quantization_config = indented(
        {{"quant_method", Json::string("w8a8_int8")}, {"ignored_layers", string_list(excluded)}});
  }
  return out;
}

std::vector<Format> quantised_formats(const std::vector<ModuleFormat>& modules) {
  std::vector<Format> out;
  for (const ModuleFormat& m : modules) {
    if (is_quantised(m.format) && std::find(out.begin(), out.end(), m.format) == out.end())
      out.push_back(m.format);
  }
  return out;
}

std::vector<std::string> modules_without(const std::vector<ModuleFormat>& modules, Format format) {
  std::vector<std::string> out;
  for (const ModuleFormat& m : modules) {
    if (m.format != format) out.push_back(m.module);
  }
  return out;
}

// Of V4 the list of ratios has entries of draft layers, too.
void leave_draft_out(Json& config) {
  const Json* const layers = config.find("num_hidden_layers");
  for (JsonMember& m : config.members()) {
    if (m.first == "num_nextn_predict_layers") m.second = Json::integer(0);
    if (m.first != "compress_ratios" || !m.second.is_array() || layers == nullptr) continue;
    std::vector<Json>& ratios = m.second.items();
    const auto kept = static_cast<size_t>(layers->is_int() ? layers->as_int() : 0);
    if (ratios.size() > kept)
      ratios.erase(ratios.begin() + static_cast<int64_t>(kept), ratios.end());
  }
}

}  // namespace

QuantDeclaration declare_quantization(const std::vector<ModuleFormat>& modules,
                                      std::string_view tool_version) {
  const std::vector<Format> formats = quantised_formats(modules);
  const auto are = [&](Format a, Format b) {
    return formats == std::vector{a, b} || formats == std::vector{b, a};
  };
  if (formats.empty()) return {};
  if (formats.size() == 1) {
    return declare_one(formats[0], modules_without(modules, formats[0]), tool_version);
  }
  if (are(Format::kMxfp4, Format::kFp8BlockUe8m0)) {
    return {.quantization_config = indented(fp8_members(true)), .sidecar = {}};
  }
  const bool ue8m0 = are(Format::kNvfp4, Format::kFp8BlockUe8m0);
  if (ue8m0 || are(Format::kNvfp4, Format::kFp8Block)) {
    const std::vector<std::string> excluded = modules_without(modules, Format::kNvfp4);
    std::vector<JsonMember> members = fp8_members(ue8m0);
    members.emplace_back("moe_quant_algo", Json::string("NVFP4"));
    members.emplace_back("quant_algo", Json::string("MIXED_PRECISION"));
    members.emplace_back("group_size", Json::integer(16));
    members.emplace_back("ignore", string_list(excluded));
    return {.quantization_config = indented(std::move(members)),
            .sidecar = modelopt_file("MIXED_PRECISION", 16, excluded, tool_version)};
  }
  return {.quantization_config = indented({{"quant_method", Json::string("modelopt")},
                                           {"quant_algo", Json::string("MIXED_PRECISION")}}),
          .sidecar = {}};
}

Result<std::string> rewrite_config(std::string_view config_text,
                                   std::string_view quantization_config,
                                   bool keep_draft,
                                   std::string_view expert_dtype) {
  FATHOM_ASSIGN(Json config, parse_json(config_text, kConfigLimits, "config.json"));
  if (!config.is_object()) return corrupt("config.json: expected an object");
  auto& members = config.members();
  std::erase_if(members, [](const JsonMember& m) { return m.first == "quantization_config"; });
  if (!expert_dtype.empty()) {
    std::erase_if(members, [](const JsonMember& m) { return m.first == "expert_dtype"; });
    members.emplace_back("expert_dtype", Json::string(std::string(expert_dtype)));
  }
  if (!keep_draft) leave_draft_out(config);
  if (!quantization_config.empty()) {
    FATHOM_ASSIGN(Json declared,
                  parse_json(quantization_config, JsonLimits{}, "quantization_config"));
    members.emplace_back("quantization_config", std::move(declared));
  }
  return dump_json(config, JsonStyle::kIndented) + "\n";
}

}  // namespace fathom
