#include "fathom/models/registry.h"

#include <algorithm>

#include "fathom/base/log.h"
#include "fathom/kernels/core/kernel_set/kernel_set.h"
#include "fathom/models/deepseek/deepseek_v3.h"
#include "fathom/models/deepseek/deepseek_v32.h"
#include "fathom/models/deepseek/v4/deepseek_v4.h"
#include "fathom/models/dry/one_form.h"
#include "fathom/os/file.h"
#include "fathom/os/memory.h"
#include "fathom/text/figures.h"
#include "fathom/text/file_kind.h"
#include "fathom/text/json.h"
#include "fathom/weights/loader.h"
#include "fathom/weights/verify/recorded_files.h"

namespace fathom {
namespace {

constexpr std::string_view kConfigName = "config.json";

// Of weights whose hash is compared when they are loaded: a tenth of a second. `fathom verify`
// compares all.
constexpr int64_t kMostHashedBytes = 64ll << 20;

template <class M>
std::unique_ptr<Model> make(const ModelConfig& config, const ModelOptions& options) {
  return std::make_unique<M>(config, options);
}

struct Architecture {
  std::string_view name;
  std::unique_ptr<Model> (*make)(const ModelConfig& config, const ModelOptions& options);
};

// clang-format off
constexpr Architecture kArchitectures[] = {
    {"DeepseekForCausalLM", make<DeepseekV3>},
    {"DeepseekV2ForCausalLM", make<DeepseekV3>},
    {"DeepseekV3ForCausalLM", make<DeepseekV3>},
    {"DeepseekV32ForCausalLM", make<DeepseekV3>},
    {"DeepseekV4ForCausalLM", make<DeepseekV4>},
};

// clang-format on

Status option_error(std::string_view name, auto found, std::string_view expected) {
  return invalid_argument(str_cat(name, " is ", found, ", expected ", expected));
}

// The draft layer may have been left out of an export. Of V4's any tensor counts: a part of them is
// refused by the names of the others.
bool has_draft_tensors(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (config.is_v4()) {
    const auto& tensors = checkpoint.tensors();
    return std::any_of(tensors.begin(), tensors.end(),
                       [](const TensorRef& ref) { return ref.entry.name.starts_with("mtp.0."); });
  }
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

Result<ModelConfig> read_config(const std::string& directory, std::string& text, Json& json) {
  FATHOM_ASSIGN(text, read_model_text(directory, kConfigName));
  const std::string path = join_path(directory, kConfigName);
  FATHOM_ASSIGN(json, parse_json_file(text, {.big_integer = JsonLimits::BigInteger::kRound}, path));
  return parse_config(json, path);
}

// A model whose weights are declared, and what they are.
struct Declared {
  std::unique_ptr<Model> model;
  WeightPlan plan;
};

// Activations in NVFP4 are for weights in NVFP4: without one the option would do nothing.
Status check_quantised(const WeightPlan& plan, const ModelSource& source) {
  for (const WeightItem& item : plan.items())
    if (item.quantises_input) return {};
  return unsupported(str_cat(source.title,
                             " has no weights in nvfp4, whose products alone read activations in "
                             "nvfp4\nhint: use --activations auto"));
}

// Where a checkpoint was made for exact activations, the scales of quantised ones are a guess.
Status warn_of_guessed_scales(const WeightPlan& plan, const ModelSource& source) {
  int64_t guessed = 0;
  int64_t all = 0;
  for (const WeightItem& item : plan.items()) {
    for (const WeightSpec& spec : item.sources) {
      if (!item.quantises_input) continue;
      FATHOM_ASSIGN(const StoredLinear stored, describe_source(*source.checkpoint, spec));
      guessed += stored.input_scale == nullptr ? 1 : 0;
      ++all;
    }
  }
  if (guessed == 0) return {};
  log_warn(source.title, ": ", guessed, " of ", all,
           " weights in nvfp4 have no input_scale: it counts as 1, of an expert as the largest "
           "beside it; `fathom quantize --calibrate FILE` measures and writes them");
  return {};
}

Result<Declared> declare(const ModelSource& source,
                         const Placement& placement,
                         ModelOptions options) {
  const Checkpoint* const files = source.checkpoint ? &*source.checkpoint : nullptr;
  options.draft = options.draft && (files == nullptr || has_draft_tensors(*files, source.config));
  FATHOM_ASSIGN(std::unique_ptr<Model> model, create_model(source.config, options));
  WeightPlan plan = files == nullptr
                        ? WeightPlan(source.config.symbols(), formats_of(source.formats), placement)
                        : WeightPlan(source.config.symbols(), tensors_of(*files), placement);
  plan.set_nvfp4_inputs(options.nvfp4_inputs);
  FATHOM_TRY(model->declare_weights(plan));
  if (options.nvfp4_inputs == Nvfp4Inputs::kQuantised) FATHOM_TRY(check_quantised(plan, source));
  return Declared{std::move(model), std::move(plan)};
}

// A prompt and a token after it, on shapes alone: whatever has no kernel is named, or what has not
// one form where it must.
Status check_kernels(const Model& dry, const DeviceInfo& gpu, int num_threads) {
  BatchShape shape;
  shape.prefill = {.count = 1, .new_tokens = 2, .cached = 0};
  shape.decode = {.count = 1, .new_tokens = 1, .cached = 2};
  const bool invariant = dry.options().batch_invariant;
  const KernelSet kernels = KernelSet::for_cuda(gpu.sm, invariant);
  const DryRunOptions options{.num_threads = num_threads, .kernels = &kernels, .gpu = &gpu};
  Status status = dry_run(dry, shape, options).status();
  if (status.ok() && invariant) status = check_one_form(dry, options);
  if (status.ok()) return {};
  return Status::error(status.code(), str_cat("this model does not run with --device cuda",
                                              invariant ? " --batch-invariant: " : ": ",
                                              status.message(), "\nhint: --device cpu runs it",
                                              invariant ? ", or leave --batch-invariant out" : ""));
}

// What would not fit is refused with both numbers, not killed half-way through loading.
Status check_memory(const Model& dry, const std::string& title, DeviceKind device) {
  const bool on_gpu = device == DeviceKind::kCuda;
  int64_t available = 0;
  if (on_gpu) {
    FATHOM_ASSIGN(available, cuda_free_bytes());
  } else {
    available = host_memory().available_bytes;
  }
  const int64_t needed = dry.weights().bytes();
  if (available == 0 || needed <= available) return {};
  return out_of_memory(str_cat(title, " needs ", format_memory(needed), " for its weights, but ",
                               format_memory(available), " are available",
                               on_gpu ? " on the GPU" : "",
                               "\nhint: try a smaller model or `fathom inspect`"));
}

Status validate_v4_options(const ModelOptions& o, const ModelConfig& c) {
  const Format kv = o.cache_format();
  const int64_t codes = c.qk_nope_head_dim;
  if (kv == Format::kNvfp4 && codes % 16 != 0) {
    return option_error("the KV cache format (--kv-cache-dtype)", "nvfp4",
                        str_cat("bf16, f32 or fp8_e4m3 for ", codes,
                                " channels without rotation: nvfp4 "
                                "needs a multiple of 16"));
  }
  const Format keys = o.index_format(c);
  if (keys != Format::kBf16 && keys != Format::kF32 && keys != Format::kE4m3 &&
      keys != Format::kMxfp4) {
    return option_error("the format of the indexer's keys (--indexer-dtype)", format_name(keys),
                        "mxfp4, fp8_e4m3, bf16 or f32");
  }
  if (keys == Format::kMxfp4 && c.index_head_dim % 32 != 0) {
    return option_error("the format of the indexer's keys (--indexer-dtype)", "mxfp4",
                        str_cat("fp8_e4m3, bf16 or f32 for keys of ", c.index_head_dim,
                                " channels: mxfp4 needs a multiple of 32"));
  }
  if (o.page_size % 32 != 0) {
    return option_error("the page size (--block-size)", o.page_size,
                        "a multiple of 32 rows, so that a page of 4 tokens a row is whole rows of "
                        "128 tokens");
  }
  return {};
}

Status validate_indexer_options(const ModelOptions& o, const ModelConfig& c) {
  const Format keys = o.index_format(c);
  if (keys != Format::kBf16 && keys != Format::kF32 && keys != Format::kE4m3) {
    return option_error("the format of the indexer's keys (--indexer-dtype)", format_name(keys),
                        "bf16, f32 or fp8_e4m3");
  }
  if (o.cache_format() == Format::kE4m3 && c.kv_lora_rank % kLatentGroup != 0) {
    return option_error("the KV cache format (--kv-cache-dtype)", "fp8_e4m3",
                        str_cat("bf16 or f32 for a kv_lora_rank of ", c.kv_lora_rank,
                                ": rows in e4m3 have a scale for ", kLatentGroup, " channels"));
  }
  return {};
}

}  // namespace

Status validate_options(const ModelOptions& o, const ModelConfig& c) {
  if (o.activations != Format::kBf16 && o.activations != Format::kF32) {
    return option_error("the activation format", format_name(o.activations), "bf16 or f32");
  }
  const Format kv = o.cache_format();
  const bool rows = kv == Format::kNvfp4 && c.is_v4();
  if (kv != Format::kBf16 && kv != Format::kF32 && kv != Format::kE4m3 && !rows) {
    return option_error("the KV cache format (--kv-cache-dtype)", format_name(kv),
                        c.is_v4() ? "bf16, f32, fp8_e4m3 or nvfp4" : "bf16, f32 or fp8_e4m3");
  }
  constexpr int64_t kMaxPageSize = 1024;
  if (c.has_indexer()) FATHOM_TRY(validate_indexer_options(o, c));
  if (c.is_v4()) FATHOM_TRY(validate_v4_options(o, c));
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

Result<ModelSource> ModelSource::open(const std::string& directory) {
  ModelSource source;
  source.title = directory;
  FATHOM_ASSIGN(source.checkpoint, Checkpoint::open(directory));
  Json json;
  FATHOM_ASSIGN(source.config, read_config(directory, source.config_text, json));
  FATHOM_ASSIGN(source.declared, read_quant_config(directory, &json));
  constexpr std::string_view kGeneration = "generation_config.json";
  const Result<std::string> text = read_model_text(directory, kGeneration);
  if (text.ok()) {
    FATHOM_ASSIGN(source.generation,
                  parse_generation_config(*text, join_path(directory, kGeneration)));
  } else if (text.status().code() != StatusCode::kNotFound) {
    return Status::error(text.status().code(), text.status().message());
  }
  return source;
}

ModelSource ModelSource::describe(const Preset& preset) {
  ModelSource source;
  source.title = preset.name;
  source.config = preset.config;
  source.formats = preset.formats;
  return source;
}

Result<ModelSource> ModelSource::describe(const std::string& directory, PresetFormatName formats) {
  ModelSource source;
  source.title = directory;
  Json json;
  FATHOM_ASSIGN(source.config, read_config(directory, source.config_text, json));
  source.formats = preset_formats(formats, source.config);
  return source;
}

Result<std::unique_ptr<Model>> open_model(const ModelSource& source,
                                          const Placement& placement,
                                          const OpenOptions& options) {
  if (!placement.shard.whole()) return unsupported("a model is opened whole, not in shards");
  if (!source.checkpoint && options.weights == WeightOrigin::kCheckpoint) {
    return invalid_argument(
        str_cat(source.title, " has no weights of its own; ask for random ones or none"));
  }
  FATHOM_ASSIGN(Declared dry, declare(source, placement, options.model));
  if (source.checkpoint) {
    FATHOM_ASSIGN(const TensorReport report,
                  verify_tensors(dry.plan, *source.checkpoint, source.config.num_hidden_layers));
    log_surplus(source.title, report);
    FATHOM_TRY(check_one_format(dry.plan, *source.checkpoint, source.declared));
    const std::string unmet = unmet_declaration(dry.plan, *source.checkpoint, source.declared);
    if (!unmet.empty()) log_warn(unmet);
  }
  FATHOM_TRY(dry.model->attach(WeightStore::dry(dry.plan)));
  if (options.weights == WeightOrigin::kNone) return std::move(dry.model);

  const bool on_gpu = placement.device == DeviceKind::kCuda;
  if (options.pool == nullptr || (on_gpu && options.gpu == nullptr)) {
    return invalid_argument("weights are to be filled, but no threads or no GPU are given");
  }
  if (on_gpu) FATHOM_TRY(check_kernels(*dry.model, *options.gpu, options.pool->size()));
  if (options.admit) FATHOM_TRY(options.admit(*dry.model));
  FATHOM_TRY(check_memory(*dry.model, source.title, placement.device));
  if (options.weights == WeightOrigin::kCheckpoint) {
    FATHOM_TRY(warn_of_guessed_scales(dry.plan, source));
    FATHOM_TRY(check_journalled_bytes(*source.checkpoint, kMostHashedBytes));
  }

  FATHOM_ASSIGN(Declared real, declare(source, placement, options.model));
  WeightStore store;
  if (options.weights == WeightOrigin::kRandom) {
    FATHOM_ASSIGN(store, random_weights(real.plan, *options.pool, options.seed));
  } else {
    FATHOM_ASSIGN(store, load_weights(real.plan, *source.checkpoint, *options.pool,
                                      {.progress = options.progress}));
  }
  if (options.loaded) options.loaded(real.plan);
  FATHOM_TRY(real.model->attach(std::move(store)));
  return std::move(real.model);
}

}  // namespace fathom
