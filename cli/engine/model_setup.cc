#include "cli/engine/model_setup.h"

#include <CLI/CLI.hpp>

#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/io/terminal.h"
#include "fathom/api/options.h"
#include "fathom/os/memory.h"
#include "fathom/weights/loader.h"

namespace fathom::cli {
namespace {

// What would not fit is refused with both numbers, not killed half-way through loading.
Status check_memory(const Model& dry, const std::string& title, Gpu* gpu) {
  int64_t available = 0;
  if (gpu == nullptr) {
    available = host_memory().available_bytes;
  } else {
    FATHOM_ASSIGN(available, cuda_free_bytes());
  }
  const int64_t needed = dry.weights().bytes();
  if (available == 0 || needed <= available) return {};
  return out_of_memory(str_cat(title, " needs ", format_bytes(needed), " for its weights, but ",
                               format_bytes(available), " are available",
                               gpu == nullptr ? "" : " on the GPU",
                               "; try a smaller model or `fathom inspect`"));
}

// A prompt and a token after it, on shapes alone: whatever has no kernel is named.
Status check_kernels(const Model& dry, Gpu* gpu, int num_threads) {
  if (gpu == nullptr) return {};
  BatchShape shape;
  shape.prefill = {.count = 1, .new_tokens = 2, .cached = 0};
  shape.decode = {.count = 1, .new_tokens = 1, .cached = 2};
  const auto needs =
      dry_run(dry, shape,
              {.num_threads = num_threads, .kernels = &gpu->kernels(), .gpu = &gpu->info()});
  if (needs.ok()) return {};
  return Status::error(needs.status().code(),
                       str_cat("this model does not run with --device cuda: ",
                               needs.status().message(), "; --device cpu runs it"));
}

Result<std::unique_ptr<Model>> open_twice(const std::string& title,
                                          OpenOptions options,
                                          Gpu* gpu,
                                          const auto& open) {
  OpenOptions dry = options;
  dry.weights = WeightOrigin::kNone;
  FATHOM_ASSIGN(const auto plan, open(dry));
  FATHOM_TRY(check_kernels(*plan, gpu, options.pool->size()));
  FATHOM_TRY(check_memory(*plan, title, gpu));
  options.report_surplus = false;  // the dry model has said it
  return open(options);
}

}  // namespace

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("--dtype", flags.dtype, "Activations: bf16, or f32 for comparisons")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", flags.kv_cache_dtype, "auto (as --dtype), bf16, f32, fp8_e4m3")
      ->check(CLI::IsMember({"auto", "bf16", "f32", "fp8_e4m3"}))
      ->capture_default_str();
  app.add_option("--block-size", flags.block_size, "Tokens of a cache page")
      ->check(integer_range(int64_t{1}, int64_t{1024}))
      ->capture_default_str();
  app.add_option("--moe", flags.moe, "How experts run: auto, grouped, sorted or fused")
      ->check(CLI::IsMember({"auto", "grouped", "sorted", "fused"}))
      ->capture_default_str();
  app.add_option("--attention", flags.attention,
                 "auto: by phase; absorbed: one form for all; fused_rope: fused decode preparation")
      ->check(CLI::IsMember({"auto", "absorbed", "fused_rope"}))
      ->capture_default_str();
  app.add_flag(
      "--batch-invariant", flags.batch_invariant,
      "One attention form, so that a token's bits never depend on how it was computed (CPU)");
}

void add_device_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("--device", flags.device, "Where the model runs: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--cuda-graphs", flags.cuda_graphs,
                 "With --device cuda: on replays captured decode steps, off launches each kernel")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
}

Result<ModelOptions> model_options(const ModelFlags& flags) {
  ModelOptions options;
  options.device = flags.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
  FATHOM_ASSIGN(options.activations, parse_format(flags.dtype));
  if (flags.kv_cache_dtype != "auto") {
    FATHOM_ASSIGN(options.kv_format, parse_format(flags.kv_cache_dtype));
  }
  options.page_size = flags.block_size;
  FATHOM_TRY(check_batch_invariant(flags.batch_invariant, flags.device));
  options.attention.prefill_chunk = flags.prefill_chunk;
  options.attention.always_absorbed = flags.batch_invariant || flags.attention == "absorbed";
  // On a GPU a step of few tokens is as long as its kernels are many.
  const bool fewest =
      options.device == DeviceKind::kCuda && flags.attention == "auto" && !flags.batch_invariant;
  options.attention.fused_rope = flags.attention == "fused_rope" || fewest;
  FATHOM_ASSIGN(options.moe.strategy, parse_moe_strategy(flags.moe));
  return options;
}

Status check_source(const ModelFlags& flags) {
  if (flags.model.empty()) return {};
  if (!flags.preset.empty()) {
    return invalid_argument(str_cat("MODEL is '", flags.model, "' and --as is '", flags.preset,
                                    "', expected one of the two: a model's files, or a built-in "
                                    "description"));
  }
  if (!flags.format.empty()) {
    return invalid_argument(str_cat("--format is '", flags.format,
                                    "', but a MODEL has the formats of its files; --format is for "
                                    "--as PRESET, and `fathom quantize` writes another format"));
  }
  if (flags.layers > 0) {
    return invalid_argument(str_cat("--layers is ", flags.layers,
                                    ", but a MODEL has all of its layers; --layers is for --as "
                                    "PRESET"));
  }
  return {};
}

Status check_max_model_len(int64_t length, const ModelConfig& config) {
  if (length <= config.max_position_embeddings) return {};
  return invalid_argument(str_cat("--max-model-len is ", length, ", expected 1 to ",
                                  config.max_position_embeddings, " (the model's context)"));
}

Result<OpenedFolder> open_folder(const std::string& directory) {
  FATHOM_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  FATHOM_ASSIGN(const std::string text, read_model_text(directory, "config.json"));
  FATHOM_ASSIGN(ModelConfig config, parse_config(text, str_cat(directory, "/config.json")));
  FATHOM_ASSIGN(QuantConfig declared, read_quant_config(directory));
  return OpenedFolder{.checkpoint = std::move(checkpoint),
                      .config = std::move(config),
                      .declared = std::move(declared)};
}

Result<Machine> set_up_machine(const GlobalFlags& globals, const std::string& device) {
  Machine machine;
  if (device == "cuda") {
    FATHOM_ASSIGN(machine.gpu, Gpu::open());
  }
  FATHOM_ASSIGN(machine.isa, limit_isa(globals.isa, best_isa()));
  machine.kernels = std::make_unique<const KernelSet>(KernelSet::for_cpu(machine.isa));
  FATHOM_ASSIGN(const int threads, resolve_threads(globals.threads));
  FATHOM_ASSIGN(machine.pool, ThreadPool::create(threads, PinThreads::kYes));
  return machine;
}

void place_session(const Machine& machine, const ModelFlags& flags, SessionOptions& options) {
  options.kernels = machine.kernels.get();
  options.gpu = machine.gpu.get();
  options.cuda_graphs = flags.cuda_graphs == "on" ? CudaGraphs::kOn : CudaGraphs::kOff;
}

namespace {

Result<OpenedModel> open_on(
    const ModelFlags& flags, const GlobalFlags& globals, ThreadPool& pool, Gpu* gpu, bool draft) {
  OpenOptions options;
  FATHOM_ASSIGN(options.model, model_options(flags));
  options.model.draft = draft;
  options.pool = &pool;
  OpenedModel opened;
  FATHOM_TRY(check_source(flags));
  if (!flags.preset.empty()) {
    Result<Preset> preset = find_preset(flags.preset);
    if (!preset.ok()) return invalid_argument(str_cat("--as: ", preset.status().message()));
    if (!flags.format.empty()) {
      FATHOM_ASSIGN(preset.value().formats, preset_formats(flags.format));
    }
    if (!flags.dummy_weights) {
      return invalid_argument(
          str_cat("--as ", flags.preset, " has no weights; add --dummy-weights, or name a MODEL"));
    }
    opened.title = flags.preset;
    if (flags.layers > 0 && flags.layers < preset.value().config.num_hidden_layers) {
      preset.value().config.num_hidden_layers = flags.layers;
      str_append(opened.title, str_cat(", ", flags.layers, " layers"));
    }
    options.weights = WeightOrigin::kRandom;
    FATHOM_ASSIGN(opened.model, open_twice(opened.title, options, gpu, [&](const OpenOptions& o) {
                    return open_preset(preset.value(), o);
                  }));
    return opened;
  }
  if (flags.model.empty()) return invalid_argument("a MODEL directory is missing");
  FATHOM_ASSIGN(opened.directory, resolve_model_argument(flags.model));
  opened.title = opened.directory;
  FATHOM_ASSIGN(const OpenedFolder folder, open_folder(opened.directory));
  ProgressBar bar("loading", globals.quiet);
  options.progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
  if (flags.dummy_weights) options.weights = WeightOrigin::kRandom;
  FATHOM_ASSIGN(opened.model, open_twice(opened.title, options, gpu, [&](const OpenOptions& o) {
                  return open_model(folder.checkpoint, folder.config, o);
                }));
  return opened;
}

}  // namespace

Result<OpenedModel> open_for(const ModelFlags& flags,
                             const GlobalFlags& globals,
                             const Machine& machine,
                             bool draft) {
  return open_on(flags, globals, *machine.pool, machine.gpu.get(), draft);
}

Result<OpenedModel> open_for(const ModelFlags& flags,
                             const GlobalFlags& globals,
                             ThreadPool& pool,
                             bool draft) {
  return open_on(flags, globals, pool, nullptr, draft);
}

}  // namespace fathom::cli
