#include "cli/engine/model_setup.h"

#include "cli/flags.h"
#include "cli/io/terminal.h"
#include "fathom/kernels/core/catalog.h"
#include "fathom/os/memory.h"
#include "fathom/weights/loader.h"

namespace fathom::cli {
namespace {

// What would not fit is refused with both numbers, not killed half-way through loading.
Status check_memory(const Model& dry, const std::string& title) {
  const HostMemory memory = host_memory();
  const int64_t needed = dry.weights().bytes();
  if (memory.available_bytes == 0 || needed <= memory.available_bytes) return {};
  return out_of_memory(str_cat(title, " needs ", format_bytes(needed), " for its weights, but ",
                               format_bytes(memory.available_bytes),
                               " are available; try a smaller model or `fathom inspect`"));
}

Result<std::unique_ptr<Model>> open_twice(const std::string& title,
                                          OpenOptions options,
                                          const auto& open) {
  OpenOptions dry = options;
  dry.weights = WeightOrigin::kNone;
  FATHOM_ASSIGN(const auto plan, open(dry));
  FATHOM_TRY(check_memory(*plan, title));
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
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->capture_default_str();
  app.add_option("--moe", flags.moe, "How experts run: auto, grouped, sorted or fused")
      ->check(CLI::IsMember({"auto", "grouped", "sorted", "fused"}))
      ->capture_default_str();
  app.add_option("--attention", flags.attention,
                 "auto: by phase; absorbed: one form for all; fused_rope: fused decode preparation")
      ->check(CLI::IsMember({"auto", "absorbed", "fused_rope"}))
      ->capture_default_str();
  app.add_flag("--batch-invariant", flags.batch_invariant,
               "One attention form, so that a token's bits never depend on how it was computed");
}

Result<ModelOptions> model_options(const ModelFlags& flags) {
  ModelOptions options;
  FATHOM_ASSIGN(options.activations, parse_format(flags.dtype));
  if (flags.kv_cache_dtype != "auto") {
    FATHOM_ASSIGN(options.kv_format, parse_format(flags.kv_cache_dtype));
  }
  options.page_size = flags.block_size;
  options.attention.prefill_chunk = flags.prefill_chunk;
  options.attention.always_absorbed = flags.batch_invariant || flags.attention == "absorbed";
  options.attention.fused_rope = flags.attention == "fused_rope";
  FATHOM_ASSIGN(options.moe.strategy, parse_moe_strategy(flags.moe));
  return options;
}

Result<Machine> set_up_machine(const GlobalFlags& globals) {
  Machine machine;
  FATHOM_ASSIGN(machine.isa, limit_isa(globals.isa, best_isa()));
  install_cpu_kernels(machine.isa);
  FATHOM_ASSIGN(const int threads, resolve_threads(globals.threads));
  FATHOM_ASSIGN(machine.pool, ThreadPool::create(threads, PinThreads::kYes));
  return machine;
}

Result<OpenedModel> open_for(const ModelFlags& flags,
                             const GlobalFlags& globals,
                             ThreadPool& pool,
                             bool draft) {
  OpenOptions options;
  FATHOM_ASSIGN(options.model, model_options(flags));
  options.model.draft = draft;
  options.pool = &pool;
  OpenedModel opened;
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
    FATHOM_ASSIGN(opened.model, open_twice(opened.title, options, [&](const OpenOptions& o) {
                    return open_preset(preset.value(), o);
                  }));
    return opened;
  }
  if (flags.model.empty()) return invalid_argument("a MODEL directory is missing");
  FATHOM_ASSIGN(opened.directory, resolve_model_argument(flags.model));
  opened.title = opened.directory;
  FATHOM_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(opened.directory));
  FATHOM_ASSIGN(const std::string config_text, read_model_text(opened.directory, "config.json"));
  FATHOM_ASSIGN(const ModelConfig config,
                parse_config(config_text, str_cat(opened.directory, "/config.json")));
  ProgressBar bar("loading", globals.quiet);
  options.progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
  if (flags.dummy_weights) options.weights = WeightOrigin::kRandom;
  FATHOM_ASSIGN(opened.model, open_twice(opened.title, options, [&](const OpenOptions& o) {
                  return open_model(checkpoint, config, o);
                }));
  return opened;
}

}  // namespace fathom::cli
