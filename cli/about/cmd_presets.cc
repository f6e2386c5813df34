// presets: the models that --as knows without files.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "cli/command.h"
#include "fathom/api/open.h"
#include "fathom/text/figures.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

// What a description amounts to, its draft layer left out.
struct PresetFacts {
  std::string name;
  std::string model_type;
  int64_t layers = 0;
  int64_t draft_layers = 0;
  int64_t context = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
  std::vector<std::pair<std::string, int64_t>> formats;  // bytes of each, most first
};

Result<PresetFacts> facts_of_preset(std::string_view name) {
  EngineOptions options;
  options.preset = std::string(name);
  FATHOM_ASSIGN(const ModelSource source, open_source(options, SourceUse::kShapes));
  const OpenOptions dry{.model = model_options(options), .weights = WeightOrigin::kNone};
  FATHOM_ASSIGN(const auto model, open_model(source, options.placement(), dry));
  const ModelConfig& config = model->config();
  PresetFacts facts{.name = options.preset,
                    .model_type = config.model_type,
                    .layers = config.num_hidden_layers,
                    .draft_layers = config.num_nextn_predict_layers,
                    .context = config.max_position_embeddings,
                    .parameters = 0,
                    .bytes = model->weights().bytes(),
                    .formats = {}};
  std::map<std::string, int64_t> bytes;
  for (const WeightSummary& s : model->weights().summary()) {
    facts.parameters += s.parameters;
    bytes[std::string(format_name(s.format))] += s.bytes;
  }
  facts.formats.assign(bytes.begin(), bytes.end());
  std::stable_sort(facts.formats.begin(), facts.formats.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return facts;
}

// "nvfp4 96 %, bf16 4 %": those that have a share of a percent.
std::string shares_of(const PresetFacts& facts) {
  std::string out;
  for (const auto& [format, bytes] : facts.formats) {
    const double percent = 100.0 * static_cast<double>(bytes) / static_cast<double>(facts.bytes);
    if (percent < 1) continue;
    str_append(out, str_cat(out.empty() ? "" : ", ", format, " ", format_fixed(percent, 0), " %"));
  }
  return out;
}

void print_text(const std::vector<PresetFacts>& presets) {
  MarkdownTable table({"preset", "parameters", "layers", "context", "formats", "bytes"});
  for (const PresetFacts& p : presets) {
    const std::string layers =
        p.draft_layers > 0 ? str_cat(p.layers, " + ", p.draft_layers, " draft") : str_cat(p.layers);
    const std::string billions = format_fixed(static_cast<double>(p.parameters) * 1e-9, 1) + " B";
    table.add(
        {p.name, billions, layers, format_count(p.context), shares_of(p), format_bytes(p.bytes)});
  }
  std::printf(
      "%s\nWeights as they lie in memory, without the draft layer. `fathom inspect --as "
      "PRESET` has the rest.\n",
      table.str().c_str());
}

void print_json(const std::vector<PresetFacts>& presets) {
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object().key("schema").string("fathom.presets/1").key("presets").begin_array();
  for (const PresetFacts& p : presets) {
    out.begin_object().key("name").string(p.name).key("model_type").string(p.model_type);
    out.key("layers").integer(p.layers).key("draft_layers").integer(p.draft_layers);
    out.key("context").integer(p.context).key("parameters").integer(p.parameters);
    out.key("bytes").integer(p.bytes).key("bytes_by_format").begin_object();
    for (const auto& [format, bytes] : p.formats)
      out.key(format).integer(bytes);
    out.end_object().end_object();
  }
  out.end_array().end_object();
  std::printf("%s\n", out.take().c_str());
}

Result<int> presets(bool json) {
  std::vector<PresetFacts> all;
  for (const std::string_view name : preset_names()) {
    FATHOM_ASSIGN(PresetFacts facts, facts_of_preset(name));
    all.push_back(std::move(facts));
  }
  (json ? print_json : print_text)(all);
  return kExitOk;
}

}  // namespace

Command add_presets(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand("presets", "The models that --as knows without files");
  sub->add_flag("--json", *json, "Print JSON (fathom.presets/1)");
  return {sub, [json](const GlobalFlags&) { return presets(*json); }};
}

}  // namespace fathom::cli
