#include "fathom/api/open.h"

#include <algorithm>
#include <mutex>

#include "fathom/base/log.h"
#include "fathom/runtime/check_pins.h"
#include "fathom/weights/checkpoint/model_folder.h"

namespace fathom {

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
  if (options.preset.empty()) {
    // Dummy weights in a format need no files but config.json.
    Result<ModelSource> source = options.dummy_weights && options.format
                                     ? ModelSource::describe(options.model, *options.format)
                                     : ModelSource::open(options.model);
    if (!source.ok()) return hint_at_files(std::move(source).status(), options.model);
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
