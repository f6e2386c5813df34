#include "fathom/api/open.h"

#include <algorithm>
#include <mutex>

#include "fathom/base/hint.h"
#include "fathom/base/log.h"
#include "fathom/os/file.h"
#include "fathom/runtime/check_pins.h"
#include "fathom/weights/checkpoint/model_folder.h"

namespace fathom {
namespace {

// An option that changes nothing here is said, not taken in silence.
void warn_of_idle_options(const EngineOptions& o, const ModelConfig& c) {
  const EngineOptions usual;
  if (o.speculative == Speculative::kOff && (o.speculative_tokens != usual.speculative_tokens ||
                                             o.speculative_topk != usual.speculative_topk ||
                                             o.speculative_width != usual.speculative_width)) {
    log_warn("the sizes of drafts (--speculative-tokens, -topk, -width) do nothing without ",
             "--speculative mtp or ngram");
  }
  if (o.indexer_dtype && !c.has_indexer() && !c.is_v4()) {
    log_warn("--indexer-dtype does nothing: the attention of ", c.architecture, " is not sparse");
  }
  if (o.attention != usual.attention && c.is_v4()) {
    log_warn("--attention does nothing: DeepSeek-V4 has one form of attention");
  }
}

// Of a directory that gave no model.
Status hint_at_source(Status status, const EngineOptions& options) {
  if (status.code() == StatusCode::kNotFound && options.dummy_weights) {
    const auto names = list_directory(options.model);
    if (names.ok() && std::find(names->begin(), names->end(), "config.json") != names->end()) {
      return with_hint_instead(std::move(status),
                               "--dummy-weights alone takes sizes and formats from the weights; "
                               "with --format FORMAT config.json is enough");
    }
  }
  return hint_at_files(std::move(status), options.model);
}

Result<ModelSource> find_source(const EngineOptions& options) {
  if (options.preset.empty()) {
    // Dummy weights in a format need no files but config.json.
    Result<ModelSource> source = options.dummy_weights && options.format
                                     ? ModelSource::describe(options.model, *options.format)
                                     : ModelSource::open(options.model);
    if (!source.ok()) return hint_at_source(std::move(source).status(), options);
    return source;
  }
  FATHOM_ASSIGN(Preset preset, find_preset(options.preset));
  if (options.format) preset.formats = preset_formats(*options.format, preset.config);
  const bool cut = options.layers > 0 && options.layers < preset.config.num_hidden_layers;
  if (cut) preset.config = first_layers(preset.config, options.layers);
  ModelSource source = ModelSource::describe(preset);
  if (cut) str_append(source.title, str_cat(", ", options.layers, " layers"));
  return source;
}

}  // namespace

Result<Machine> set_up_machine(const EngineOptions& options) {
  Machine machine;
  FATHOM_ASSIGN(machine.isa, usable_isa(options));
  if (options.device.kind == DeviceKind::kCuda) {
    FATHOM_ASSIGN(machine.gpu, Gpu::open(options.device.ordinal, options.batch_invariant));
  }
  machine.kernels = std::make_unique<const KernelSet>(KernelSet::for_cpu(machine.isa));
  const PinThreads pin = options.pin_threads ? PinThreads::kYes : PinThreads::kNo;
  FATHOM_ASSIGN(machine.pool, ThreadPool::create(thread_count(options), pin));
  return machine;
}

Result<Isa> usable_isa(const EngineOptions& options) {
  return options.isa ? limit_isa(isa_name(*options.isa), best_isa()) : best_isa();
}

int thread_count(const EngineOptions& options) {
  const int cpus = cpu_info().num_cpus();
  if (options.threads <= 0) return std::min(cpu_info().num_cores, cpus);
  if (options.threads > cpus) {
    static std::once_flag said;
    std::call_once(said, [&] {
      log_warn("--threads ", options.threads, ": this process may use ", cpus,
               " CPUs; more threads ", "would wait for each other, so ", cpus, " run");
    });
  }
  return static_cast<int>(std::min<int64_t>(options.threads, cpus));
}

Result<ModelSource> open_source(const EngineOptions& options, SourceUse use) {
  FATHOM_TRY(check_source(options, use));
  FATHOM_ASSIGN(ModelSource source, find_source(options));
  warn_of_idle_options(options, source.config);
  return source;
}

ModelOptions model_options(const EngineOptions& o) {
  ModelOptions m;
  m.activations = o.dtype.value_or(Format::kBf16);
  m.kv_format = o.kv_cache_dtype;
  m.indexer_format = o.indexer_dtype;
  m.page_size = o.block_size;
  m.draft = o.speculative == Speculative::kMtp;  // else its layer would only take memory
  m.batch_invariant = o.batch_invariant;
  m.attention.always_absorbed = o.batch_invariant || o.attention == AttentionChoice::kAbsorbed;
  // On a GPU a step of few tokens is as long as its kernels are many.
  const bool fewest = o.device.kind == DeviceKind::kCuda && !o.batch_invariant &&
                      o.attention == AttentionChoice::kByPhase;
  m.attention.fused_rope = o.attention == AttentionChoice::kFusedRope || fewest;
  m.chain_streams = o.device.kind == DeviceKind::kCuda && !o.batch_invariant;
  m.moe.join_router = m.chain_streams;
  m.attention.prefill_chunk = o.attention_key_chunk;
  m.nvfp4_inputs = o.activations;
  m.moe.strategy = o.moe;
  m.moe.activations = o.moe_activations;
  return m;
}

OpenOptions open_options(const EngineOptions& options, const Machine& machine) {
  return {.model = model_options(options),
          .weights = options.dummy_weights ? WeightOrigin::kRandom : WeightOrigin::kCheckpoint,
          .pool = machine.pool.get(),
          .gpu = machine.gpu == nullptr ? nullptr : &machine.gpu->info(),
          .seed = options.dummy_seed,
          .admit = [pins = options.pins, compute = machine.compute()](const Model& dry) {
            return check_pins(pins, dry, compute);
          }};
}

}  // namespace fathom
