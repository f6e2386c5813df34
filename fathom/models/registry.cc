#include "fathom/models/registry.h"

#include <algorithm>

#include "fathom/base/log.h"
#include "fathom/models/deepseek_v3.h"
#include "fathom/weights/checkpoint.h"
#include "fathom/weights/loader.h"

namespace fathom {
namespace {

template <class M>
std::unique_ptr<Model> make(const ModelConfig& config, const ModelOptions& options) {
  return std::make_unique<M>(config, options);
}

struct Architecture {
  std::string_view name;
  std::unique_ptr<Model> (*make)(const ModelConfig& config, const ModelOptions& options);
};

constexpr Architecture kArchitectures[] = {
    {"DeepseekV2ForCausalLM", make<DeepseekV3>},
    {"DeepseekV3ForCausalLM", make<DeepseekV3>},
};

Status option_error(std::string_view name, auto found, std::string_view expected) {
  return invalid_argument(str_cat(name, " is ", found, ", expected ", expected));
}

// The draft layer may have been left out of an export.
bool has_draft_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  return checkpoint.find(str_cat("model.layers.", config.num_hidden_layers, ".eh_proj.weight")) !=
         nullptr;
}

void log_surplus(const std::string& directory, const TensorReport& report) {
  if (report.surplus.empty()) return;
  constexpr size_t kShown = 5;
  std::string names;
  for (size_t i = 0; i < std::min(report.surplus.size(), kShown); ++i) {
    str_append(names, str_cat(i == 0 ? "" : ", ", report.surplus[i]));
  }
  const auto count = static_cast<int64_t>(report.surplus.size());
  log_warn(directory, ": ", count,
           count == 1 ? " tensor is not used: " : " tensors are not used: ", names,
           report.surplus.size() > kShown ? ", ..." : "");
}

Status need_pool(const OpenOptions& options) {
  if (options.pool != nullptr) return {};
  return invalid_argument("weights are to be filled, but no threads are given");
}

Result<std::unique_ptr<Model>> finish(std::unique_ptr<Model> model,
                                      const WeightPlan& plan,
                                      const OpenOptions& options) {
  if (options.weights == WeightOrigin::kNone) {
    FATHOM_TRY(model->attach(WeightStore::dry(plan)));
  } else {
    FATHOM_TRY(need_pool(options));
    FATHOM_ASSIGN(WeightStore store, random_weights(plan, *options.pool, options.seed));
    FATHOM_TRY(model->attach(std::move(store)));
  }
  return model;
}

}  // namespace

Status validate_options(const ModelOptions& o, const ModelConfig& c) {
  if (o.activations != Format::kBf16 && o.activations != Format::kF32) {
    return option_error("the activation format", format_name(o.activations), "bf16 or f32");
  }
  const Format kv = o.cache_format();
  if (kv != Format::kBf16 && kv != Format::kF32 && kv != Format::kE4m3) {
    return option_error("the KV cache format", format_name(kv), "bf16, f32 or e4m3");
  }
  constexpr int64_t kMaxPageSize = 1024;
  if (o.page_size < 1 || o.page_size > kMaxPageSize) {
    return option_error("the page size", o.page_size, "1 to 1024 tokens");
  }
  if (o.attention.prefill_chunk < 1 || o.attention.prefill_chunk % o.page_size != 0) {
    return option_error("the prefill chunk", o.attention.prefill_chunk,
                        str_cat("a multiple of the page size ", o.page_size));
  }
  if (o.max_positions < 0 || o.max_positions > c.max_position_embeddings) {
    return option_error("the longest context", o.max_positions,
                        str_cat("1 to ", c.max_position_embeddings, " (max_position_embeddings)"));
  }
  return {};
}

Result<std::unique_ptr<Model>> create_model(const ModelConfig& config,
                                            const ModelOptions& options) {
  FATHOM_TRY(validate_config(config, "the configuration"));
  FATHOM_TRY(validate_options(options, config));
  std::string known;
  for (const Architecture& a : kArchitectures) {
    if (a.name == config.architecture) return a.make(config, options);
    str_append(known, str_cat(known.empty() ? "" : ", ", a.name));
  }
  return unsupported(
      str_cat("architecture \"", config.architecture.substr(0, 64), "\", expected one of ", known));
}

Result<std::unique_ptr<Model>> open_model(const Checkpoint& checkpoint,
                                          const ModelConfig& config,
                                          const OpenOptions& options) {
  ModelOptions model_options = options.model;
  model_options.draft = options.model.draft && has_draft_tensors(checkpoint, config);
  FATHOM_ASSIGN(std::unique_ptr<Model> model, create_model(config, model_options));
  WeightPlan plan(config.symbols(), tensors_of(checkpoint), {.device = model_options.device});
  FATHOM_TRY(model->declare_weights(plan));
  FATHOM_ASSIGN(const TensorReport report,
                verify_tensors(plan, checkpoint, config.num_hidden_layers));
  if (options.report_surplus) log_surplus(checkpoint.directory(), report);
  if (options.weights != WeightOrigin::kCheckpoint) return finish(std::move(model), plan, options);
  FATHOM_TRY(need_pool(options));
  FATHOM_ASSIGN(WeightStore store,
                load_weights(plan, checkpoint, *options.pool, {.progress = options.progress}));
  FATHOM_TRY(model->attach(std::move(store)));
  return model;
}

Result<std::unique_ptr<Model>> open_model(const std::string& directory,
                                          const OpenOptions& options) {
  FATHOM_ASSIGN(const std::string text, read_model_text(directory, "config.json"));
  FATHOM_ASSIGN(const ModelConfig config, parse_config(text, str_cat(directory, "/config.json")));
  FATHOM_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(directory));
  return open_model(checkpoint, config, options);
}

Result<std::unique_ptr<Model>> open_preset(const Preset& preset, const OpenOptions& options) {
  if (options.weights == WeightOrigin::kCheckpoint) {
    return invalid_argument(
        str_cat("preset ", preset.name, " has no weights of its own; ask for random ones or none"));
  }
  FATHOM_ASSIGN(std::unique_ptr<Model> model, create_model(preset.config, options.model));
  WeightPlan plan(preset.config.symbols(), formats_of(preset.formats),
                  {.device = options.model.device});
  FATHOM_TRY(model->declare_weights(plan));
  return finish(std::move(model), plan, options);
}

}  // namespace fathom
