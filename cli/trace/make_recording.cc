#include "cli/trace/make_recording.h"

#include <algorithm>
#include <charconv>

#include "cli/io/progress.h"
#include "cli/trace/planned_device.h"
#include "fathom/base/checked_math.h"
#include "fathom/base/log.h"
#include "fathom/base/near_names.h"
#include "fathom/base/rng.h"
#include "fathom/bench/machine/gpu_machine.h"
#include "fathom/bench/timing/timer.h"
#include "fathom/kernels/core/kernel_set/kernel_set.h"
#include "fathom/report/record/live_trace.h"
#include "fathom/runtime/executor/decode_shapes.h"
#include "fathom/text/figures.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::cli {
namespace {

constexpr std::string_view kForms[] = {"mha", "chunked", "absorbed", "fused_rope"};

// The options with the directory of their MODEL; a name near a built-in one is answered with it.
Result<EngineOptions> with_directory(const EngineOptions& options, SourceUse use) {
  FATHOM_TRY(validate(options, use));
  Result<EngineOptions> checked = checked_options(options, use);
  if (checked.ok() || options.model.empty()) return checked;
  const std::vector<std::string_view> presets = preset_names();
  const auto near = near_names(options.model, {presets.begin(), presets.end()});
  if (near.empty()) return checked;
  return std::move(checked).status().add_context(
      str_cat("no such model (a built-in description is --as ", near.front(), ")"));
}

struct LayerRange {
  int first = 0;
  int last = 1 << 30;
};

Result<LayerRange> parse_layers(const std::string& text) {
  LayerRange out;
  if (text.empty()) return out;
  const char* end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, out.first);
  out.last = out.first;
  if (error == std::errc{} && at != end && *at == '-') {
    const auto rest = std::from_chars(at + 1, end, out.last);
    at = rest.ptr;
    error = rest.ec;
  }
  if (error != std::errc{} || at != end || out.first < 0 || out.last < out.first) {
    return invalid_argument(str_cat("--layers is '", text, "', expected a layer or a range: 3-5"));
  }
  return out;
}

// The layers of a model that the flag asks for.
Result<LayerRange> chosen_layers(const std::string& text, const ModelConfig& config) {
  FATHOM_ASSIGN(const LayerRange layers, parse_layers(text));
  const int64_t all = config.num_hidden_layers + config.num_nextn_predict_layers;
  if (text.empty() || layers.last < all) return layers;
  return invalid_argument(
      str_cat("--layers is '", text, "', but the model has layers 0 to ", all - 1));
}

// ---- What documents say of the run

std::string formats_text(const std::vector<WeightSummary>& weights) {
  std::string out;
  for (const WeightSummary& s : weights) {
    if (s.role == WeightRole::kNorm || s.role == WeightRole::kRouterBias) continue;
    str_append(out, str_cat(out.empty() ? "" : ", ",
                            s.draft && s.role != WeightRole::kDraft ? "draft " : "",
                            weight_role_name(s.role), " ", format_name(s.format)));
  }
  return out;
}

std::string command_of(const TraceFlags& f, const GlobalFlags& globals, const TraceShape& shape) {
  std::string out = "fathom trace";
  const auto flag = [&](std::string_view name, const std::string& value) {
    str_append(out, str_cat(" ", name, value.empty() ? "" : " ", value));
  };
  if (f.dry) flag("--dry", {});
  const EngineOptions usual;
  for (const OptionInfo& row : option_table()) {
    const std::string value = row.get(f.engine);
    if (row.group == OptionGroup::kMachine || value == row.get(usual)) continue;
    if (row.flag == "model") {
      flag(value, {});
    } else {
      flag(str_cat("--", row.flag), row.value().empty() ? std::string{} : value);
    }
  }
  if (f.attention != "auto") flag("--attention", f.attention);
  if (!f.layers.empty()) flag("--layers", f.layers);
  if (shape.batch != 1) flag("--batch", str_cat(shape.batch));
  if (f.prompt_tokens > 0) flag("--prompt-tokens", str_cat(f.prompt_tokens));
  if (f.kv_len > 0) flag("--kv-len", str_cat(f.kv_len));
  if (!f.prompt.empty()) flag("-p", str_cat("'", f.prompt, "'"));
  if (!f.dry) flag("--gen", str_cat(f.generate));
  if (!f.dry && f.chunk != TraceFlags{}.chunk) flag("--chunk", str_cat(f.chunk));
  if (f.probe) flag("--probe", {});
  if (f.dry) flag("--device", f.device.empty() ? "cpu" : f.device);
  if (f.on_gpu()) flag("--device", f.device);
  if (globals.engine.isa) flag("--isa", find_option("isa")->get(globals.engine));
  return out;
}

void describe(const Model& model, const TraceFlags& f, const TraceShape& shape, Recording& r) {
  const ModelOptions& o = model.options();
  r.config = model.config();
  r.symbols = r.config.symbols();
  r.weights = model.weights().summary();
  r.settings.emplace_back("weights", formats_text(r.weights));
  r.settings.emplace_back("activations", format_name(o.activations));
  r.settings.emplace_back(
      "cache", str_cat(format_name(o.cache_format()), ", pages of ", o.page_size, " tokens"));
  r.settings.emplace_back("experts", find_option("moe")->get(f.engine));
  r.settings.emplace_back("attention", f.attention);
  r.settings.emplace_back("keys a chunk of prefill", str_cat(o.attention.prefill_chunk));
  r.settings.emplace_back("requests", str_cat(shape.batch));
  if (shape.speculative == Speculative::kOff) return;
  r.settings.emplace_back("drafts", str_cat(speculative_name(shape.speculative), ", at most ",
                                            shape.drafts.drafts(), " a step"));
}

// Keeps what the flags ask for: layers, and the phases of one form of attention.
Status select(const TraceFlags& flags, Recording& r) {
  FATHOM_ASSIGN(const LayerRange layers, chosen_layers(flags.layers, r.config));
  if (!flags.layers.empty()) {
    for (TracePhase& phase : r.phases)
      keep_layers(phase, layers.first, layers.last);
  }
  if (flags.attention == "auto") return {};
  std::string seen;
  for (const TracePhase& phase : r.phases)
    str_append(seen, str_cat(seen.empty() ? "" : ", ", phase.name, " ", attention_form_of(phase)));
  std::erase_if(r.phases,
                [&](const TracePhase& p) { return attention_form_of(p) != flags.attention; });
  if (!r.phases.empty()) return {};
  return invalid_argument(str_cat("--attention ", flags.attention,
                                  ": no phase of this run has that form; it has ", seen));
}

// What else the model could run. A trace is complete without it.
std::vector<Variation> variations_of(const Model& model, const TraceShape& shape) {
  Result<std::vector<Variation>> found = dry_variations(model, shape);
  if (found.ok()) return std::move(found).value();
  log_warn("what other flags would run is not shown: ", found.status().message());
  return {};
}

std::string capability_text(const DeviceInfo& gpu) {
  return str_cat("compute capability ", gpu.sm / 10, ".", gpu.sm % 10);
}

// ---- Dry runs

// The sizes of a dry run; defaults shrink with the context of the model.
TraceShape dry_shape(const TraceFlags& flags, const ModelConfig& config) {
  const int64_t half = std::max<int64_t>(config.max_position_embeddings / 2, 1);
  return {.batch = flags.batch,
          .prompt_tokens =
              flags.prompt_tokens > 0 ? flags.prompt_tokens : std::min<int64_t>(1024, half),
          .kv_len = flags.kv_len > 0 ? flags.kv_len : std::min<int64_t>(4096, half),
          .num_threads = 1,
          .speculative = flags.engine.speculative,
          .drafts = flags.engine.draft_shape()};
}

// The kernels of the device, which settings of the recording name.
Result<KernelSet> plan_device(const PlannedDevice& device,
                              const GlobalFlags& globals,
                              Recording& r) {
  r.has_variants = true;
  if (device.is_gpu()) {
    r.settings.emplace_back("device", str_cat(device.name, ", ", capability_text(device.gpu)));
    return KernelSet::for_cuda(device.gpu.sm, globals.engine.batch_invariant);
  }
  const Isa isa = globals.engine.isa.value_or(best_isa());
  r.settings.emplace_back("device", str_cat("cpu with ", isa_name(isa)));
  return KernelSet::planned_for_cpu(isa);
}

// The options of the engine that the flags of a trace mean besides their own.
Result<EngineOptions> engine_options(const TraceFlags& flags) {
  EngineOptions options = flags.engine;
  if (flags.attention == "absorbed" || flags.attention == "fused_rope") {
    FATHOM_TRY(set_option(options, "attention", flags.attention));
  }
  if (!flags.dry && !flags.device.empty()) {
    FATHOM_TRY(set_option(options, "device", flags.device));
  }
  return options;
}

Result<std::unique_ptr<Model>> open_dry(const TraceFlags& flags,
                                        const PlannedDevice& device,
                                        Recording& r) {
  FATHOM_ASSIGN(EngineOptions options, engine_options(flags));
  if (device.is_gpu()) options.device.kind = DeviceKind::kCuda;
  const std::optional<PresetFormatName> format = options.format;
  if (!options.model.empty()) options.format.reset();  // a dry run shows a MODEL in any format
  FATHOM_ASSIGN(options, with_directory(options, SourceUse::kShapes));
  r.model = r.title = short_name(options);
  if (flags.attention == "mha" && flags.prompt_tokens > 0) {
    const int64_t tokens = flags.prompt_tokens * flags.batch;
    options.attention_key_chunk =
        std::max(options.attention_key_chunk, align_up(tokens, options.block_size));
  }
  OpenOptions dry{.model = model_options(options), .weights = WeightOrigin::kNone};
  dry.model.draft = true;
  ModelSource source;
  if (!options.model.empty() && format) {
    FATHOM_ASSIGN(source, ModelSource::describe(options.model, *format));
  } else {
    options.format = format;
    FATHOM_ASSIGN(source, open_source(options, SourceUse::kShapes));
  }
  return open_model(source, options.placement(), dry);
}

Result<TraceRun> record_dry(const TraceFlags& flags, const GlobalFlags& globals) {
  TraceRun out;
  Recording& r = out.recording;
  FATHOM_ASSIGN(const PlannedDevice device,
                planned_device(flags.device.empty() ? "cpu" : flags.device));
  FATHOM_ASSIGN(const KernelSet kernels, plan_device(device, globals, r));
  FATHOM_ASSIGN(const std::unique_ptr<Model> model, open_dry(flags, device, r));
  TraceShape shape = dry_shape(flags, model->config());
  FATHOM_TRY(check_speculative(shape.speculative, shape.drafts, *model));
  shape.kernels = &kernels;
  if (device.is_gpu()) shape.gpu = &device.gpu;
  r.command = command_of(flags, globals, shape);
  describe(*model, flags, shape, r);
  FATHOM_ASSIGN(r.phases, dry_phases(*model, shape));
  FATHOM_TRY(select(flags, r));
  out.variations = variations_of(*model, shape);
  return out;
}

// ---- Real runs

// "recording costs 0.21 % of a decode step: ..."
std::string overhead_text(const LiveRun& run) {
  std::vector<double> ratios;
  for (size_t i = 0; i < run.recorded_ns.size(); ++i)
    ratios.push_back(run.recorded_ns[i] / run.unrecorded_ns[i]);
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return quantile(values, 0.5);
  };
  return str_cat("recording costs ", format_fixed(100 * (median(ratios) - 1), 2),
                 " % of a decode step: ", format_fixed(median(run.recorded_ns) * 1e-6, 3),
                 " ms with, ", format_fixed(median(run.unrecorded_ns) * 1e-6, 3),
                 " ms without (medians of ", ratios.size(), " in turn)");
}

std::vector<int32_t> random_prompt(int64_t count, int64_t vocabulary) {
  Rng rng(1);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids)
    id = static_cast<int32_t>(rng.next_below(static_cast<uint32_t>(vocabulary)));
  return ids;
}

// The device of a real run and, of a GPU, what its times are.
void describe_device(const Machine& machine, const TraceFlags& flags, Recording& r) {
  if (machine.gpu == nullptr) {
    r.settings.emplace_back("device", str_cat(cpu_info().model, " with ", isa_name(machine.isa),
                                              ", ", machine.pool->size(), " threads"));
    return;
  }
  const DeviceInfo& gpu = machine.gpu->info();
  r.settings.emplace_back("device", str_cat("cuda: ", gpu.name, ", ", capability_text(gpu), ", ",
                                            gpu.num_sms, " multiprocessors"));
  r.settings.emplace_back(
      "times of ops",
      str_cat("medians of ", LiveOptions{}.repetitions,
              " runs of each step as a graph in one stream with a mark after each op; laid one "
              "behind the other from the start of the step"));
  r.settings.emplace_back(
      "times of steps",
      "medians as one graph without marks, as decode steps run: less than their ops one by one");
  const int64_t padded = decode_bucket(flags.batch);
  if (padded == flags.batch) return;
  r.settings.emplace_back("decode steps", str_cat(flags.batch, " requests run as ", padded,
                                                  ": captured steps have few shapes"));
}

Result<std::vector<int32_t>> prompt_of(const TraceFlags& flags,
                                       const std::optional<Tokenizer>& tokenizer,
                                       int64_t vocabulary) {
  if (flags.prompt.empty()) return random_prompt(flags.prompt_tokens, vocabulary);
  return tokenizer->encode(flags.prompt, {.add_bos = AddBos::kAsConfigured});
}

// How the model of a real run is opened. A preset is opened up to the last layer that is asked for:
// dummy weights of all may not fit.
Result<EngineOptions> live_options(const TraceFlags& flags) {
  FATHOM_ASSIGN(EngineOptions options, engine_options(flags));
  if (!options.preset.empty() && !flags.layers.empty()) {
    FATHOM_ASSIGN(const Preset preset, find_preset(options.preset));
    FATHOM_ASSIGN(const LayerRange layers, chosen_layers(flags.layers, preset.config));
    options.layers = int64_t{layers.last} + 1;
  }
  return with_directory(options, SourceUse::kWeights);
}

Result<TraceRun> record_live(const TraceFlags& flags, const GlobalFlags& globals) {
  if (flags.prompt.empty() && flags.prompt_tokens == 0) {
    return invalid_argument(
        "a real run needs a prompt\nhint: give -p TEXT, or --prompt-tokens N for random ones; "
        "--dry runs "
        "nothing");
  }
  if (!flags.prompt.empty() && flags.engine.model.empty()) {
    return invalid_argument("a built-in description has no tokenizer\nhint: use --prompt-tokens N");
  }
  FATHOM_ASSIGN(const EngineOptions options, live_options(flags));
  FATHOM_ASSIGN(const Machine machine, set_up_machine(options));
  Gpu* const gpu = machine.gpu.get();
  FATHOM_ASSIGN(const OpenedModel opened, open_for(options, globals, machine, true));
  FATHOM_TRY(chosen_layers(flags.layers, opened.model->config()).status());
  FATHOM_TRY(check_speculative(options.speculative, options.draft_shape(), *opened.model));
  std::optional<Tokenizer> tokenizer;
  if (!opened.directory.empty()) {
    FATHOM_ASSIGN(tokenizer, load_tokenizer(opened.directory));
  }
  LiveOptions live{.prompt = {},
                   .generate = flags.generate,
                   .batch = flags.batch,
                   .chunk = flags.chunk,
                   .level = flags.probe ? RecordLevel::kProbed : RecordLevel::kTimed,
                   .measure_overhead = flags.overhead,
                   .pins = options.pins,
                   .speculative = options.speculative,
                   .drafts = options.draft_shape()};
  FATHOM_ASSIGN(live.prompt, prompt_of(flags, tokenizer, opened.model->config().vocab_size));
  TraceRun out;
  Recording& r = out.recording;
  r.model = r.title = short_name(options);
  r.timed = true;
  r.has_variants = true;
  TraceShape shape = dry_shape(flags, opened.model->config());
  // What else the model could run is found on shapes, with the variants of this machine.
  shape.kernels = gpu == nullptr ? machine.kernels.get() : &gpu->kernels();
  if (gpu != nullptr) shape.gpu = &gpu->info();
  r.command = command_of(flags, globals, shape);
  describe_device(machine, flags, r);
  describe(*opened.model, flags, shape, r);
  // Before the run: what it allocates leaves a GPU less memory to read.
  if (gpu != nullptr) {
    FATHOM_ASSIGN(out.peaks, measure_gpu_peaks(gpu->info(), gpu->stream()));
  }
  Progress progress("tracing", "", globals.quiet);
  progress.update(
      0, 0, str_cat("a prompt of ", live.prompt.size(), " tokens and ", live.generate, " steps"));
  FATHOM_ASSIGN(LiveRun run, run_live(*opened.model, machine.compute(), live));
  r.begin_ns = run.begin_ns;
  r.phases = std::move(run.phases);
  FATHOM_TRY(select(flags, r));
  if (tokenizer) out.answer = tokenizer->decode(run.tokens);
  if (flags.overhead) out.overhead = overhead_text(run);
  if (gpu == nullptr) {
    FATHOM_ASSIGN(out.peaks, measure_peaks(*machine.pool, machine.isa, {.seconds = 0.1}));
  }
  out.variations = variations_of(*opened.model, shape);
  return out;
}

// Flags that would do nothing are mistakes.
Status check_flags(const TraceFlags& flags, const GlobalFlags& globals) {
  EngineOptions source = flags.engine;
  if (flags.dry && source.preset.empty()) source.format.reset();
  FATHOM_TRY(check_source(source, SourceUse::kShapes));
  const bool gpu = flags.on_gpu();
  const bool drafts = source.speculative != Speculative::kOff;
  const bool elsewhere = !flags.device.empty() && flags.device != "cpu" && !gpu;

  const struct {
    bool given;
    std::string_view flag, instead;
  } useless[] = {
      {flags.dry && !flags.prompt.empty(), "-p", "--prompt-tokens N says how long its prompts are"},
      {flags.dry && flags.probe, "--probe", "there are no values to keep"},
      {flags.dry && flags.overhead, "--overhead", "there is no time to measure"},
      {flags.dry && flags.engine.dummy_weights, "--dummy-weights", "it needs no weights"},
      {flags.dry && !flags.engine.pins.empty(), "--pin", "it runs no kernels"},
      {!flags.dry && flags.kv_len > 0, "--kv-len", "the prompt makes the cache"},
      {flags.overhead && drafts, "--overhead",
       "steps with drafts are those of the engine, each with other tokens"},
      {gpu && drafts, "--speculative",
       "steps with drafts are recorded on a CPU; --dry --device h200 shows what a GPU runs"},
      {gpu && flags.probe, "--probe",
       "a step is one graph, and what its ops write stays on the GPU; --device cpu keeps it"},
      {gpu && flags.overhead, "--overhead",
       "steps are timed with marks and without, and summary.csv has both"},
      {gpu && globals.engine.isa, "--isa", "it chooses among the kernels of a CPU"},
  };

  for (const auto& [given, flag, instead] : useless) {
    if (!given) continue;
    return invalid_argument(str_cat(flag, " has no use in a ", flags.dry ? "dry" : "real", " run",
                                    gpu ? " on a GPU: " : ": ", instead));
  }
  if (flags.dry || !elsewhere) return {};
  return invalid_argument(str_cat("--device is '", flags.device,
                                  "', but a real run is on cpu or cuda; --dry shows the plan for "
                                  "another device"));
}

}  // namespace

Result<TraceRun> make_recording(const TraceFlags& flags, const GlobalFlags& globals) {
  FATHOM_TRY(check_flags(flags, globals));
  const auto known = std::find(std::begin(kForms), std::end(kForms), flags.attention);
  if (flags.attention != "auto" && known == std::end(kForms)) {
    return invalid_argument(str_cat("--attention is '", flags.attention,
                                    "'; known are auto, mha, chunked, absorbed and fused_rope"));
  }
  return flags.dry ? record_dry(flags, globals) : record_live(flags, globals);
}

}  // namespace fathom::cli
