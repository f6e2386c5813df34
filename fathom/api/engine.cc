#include "fathom/api/engine.h"

#include <algorithm>
#include <random>

#include "fathom/base/log.h"
#include "fathom/os/memory.h"
#include "fathom/os/sha256.h"
#include "fathom/runtime/eval/evaluate.h"
#include "fathom/runtime/forward_session.h"
#include "fathom/weights/checkpoint.h"
#include "fathom/weights/loader.h"

namespace fathom {
namespace {

// Tokens of a pass of score(): its logits are chunk * V floats.
constexpr int64_t kScoreChunk = 64;

// Everything about a model that is known without its weights.
struct Source {
  std::optional<Checkpoint> checkpoint;
  std::optional<Preset> preset;
  ModelConfig config;
  GenerationConfig generation;
  std::optional<Tokenizer> tokenizer;
  std::string fingerprint;
  std::unique_ptr<Model> dry;
};

Result<ModelOptions> model_options(const EngineOptions& o) {
  ModelOptions m;
  m.device = o.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
  m.activations = o.dtype == "f32" ? Format::kF32 : Format::kBf16;
  m.page_size = o.block_size;
  m.draft = false;  // nothing drafts yet: its layer would only take memory
  m.attention.always_absorbed = o.batch_invariant || o.attention == "absorbed";
  // On a GPU a step of few tokens is as long as its kernels are many.
  const bool fewest = m.device == DeviceKind::kCuda && o.attention == "auto" && !o.batch_invariant;
  m.attention.fused_rope = o.attention == "fused_rope" || fewest;
  m.attention.prefill_chunk = o.attention_key_chunk;
  FATHOM_ASSIGN(m.moe.strategy, parse_moe_strategy(o.moe));
  return m;
}

Result<OpenOptions> open_options(const EngineOptions& o) {
  OpenOptions open;
  FATHOM_ASSIGN(open.model, model_options(o));
  FATHOM_ASSIGN(open.model.kv_format, choose_kv_format(o.kv_cache_dtype, open.model.activations));
  open.seed = o.dummy_seed;
  return open;
}

Result<std::unique_ptr<Model>> open_source(const Source& source, const OpenOptions& open) {
  return source.preset ? open_preset(*source.preset, open)
                       : open_model(*source.checkpoint, source.config, open);
}

// Of the configuration and of every tensor's name, format, shape and place. Pages never leave the
// process, and within it the tensors of an open checkpoint do not change.
std::string fingerprint_of(const Checkpoint& checkpoint,
                           std::string_view config_text,
                           const EngineOptions& o) {
  Sha256 hash;
  hash.update(checkpoint.directory()).update("\n").update(config_text);
  hash.update(o.dummy_weights ? str_cat("\ndummy ", o.dummy_seed) : std::string());
  for (const TensorRef& t : checkpoint.tensors()) {
    hash.update(str_cat("\n", t.file, " ", t.entry.name, " ", format_name(t.entry.dtype), " ",
                        t.entry.begin, " ", t.entry.end));
  }
  return to_hex(hash.finish());
}

Result<Source> find_source(const EngineOptions& o, std::optional<Tokenizer> tokenizer = {}) {
  Source source;
  if (!o.preset.empty()) {
    FATHOM_ASSIGN(source.preset, find_preset(o.preset));
    if (!o.format.empty()) {
      FATHOM_ASSIGN(source.preset->formats, preset_formats(o.format));
    }
    source.config = source.preset->config;
    source.fingerprint = to_hex(sha256(str_cat(o.preset, "\n", o.format, "\n", o.dummy_seed)));
  } else {
    FATHOM_ASSIGN(source.checkpoint, Checkpoint::open(o.model));
    FATHOM_ASSIGN(const std::string text, read_model_text(o.model, "config.json"));
    FATHOM_ASSIGN(source.config, parse_config(text, o.model + "/config.json"));
    FATHOM_ASSIGN(source.generation, read_generation_config(o.model));
    source.tokenizer = std::move(tokenizer);
    if (!source.tokenizer) {
      FATHOM_ASSIGN(source.tokenizer, Tokenizer::load(o.model));
    }
    if (source.tokenizer->vocab_size() > source.config.vocab_size) {
      return corrupt(str_cat(o.model, "/tokenizer.json: the largest id is ",
                             source.tokenizer->vocab_size() - 1, ", expected at most ",
                             source.config.vocab_size - 1, " (vocab_size of config.json)"));
    }
    source.fingerprint = fingerprint_of(*source.checkpoint, text, o);
  }
  FATHOM_ASSIGN(OpenOptions dry, open_options(o));
  dry.weights = WeightOrigin::kNone;
  FATHOM_ASSIGN(source.dry, open_source(source, dry));
  return source;
}

int64_t num_ids_of(const Source& source) {
  const int64_t width = source.config.vocab_size;
  return source.tokenizer ? std::min<int64_t>(width, source.tokenizer->vocab_size()) : width;
}

Result<MemoryPlan> plan_source(const Source& source,
                               const EngineOptions& o,
                               int num_threads,
                               const Gpu* gpu) {
  int64_t available = 0;
  if (gpu == nullptr) {
    available = host_memory().available_bytes;
  } else {
    FATHOM_ASSIGN(available, cuda_free_bytes());
  }
  return plan_memory(*source.dry, {.max_model_len = o.max_model_len,
                                   .max_num_seqs = o.max_num_seqs,
                                   .max_num_batched_tokens = o.max_num_batched_tokens,
                                   .num_ids = num_ids_of(source),
                                   .num_threads = num_threads,
                                   .kernels = gpu == nullptr ? nullptr : &gpu->kernels(),
                                   .gpu = gpu == nullptr ? nullptr : &gpu->info(),
                                   .sizing = o.kv_pool == "remaining" ? KvSizing::kRemaining
                                                                      : KvSizing::kByRequest,
                                   .memory_fraction = o.memory_fraction,
                                   .available_bytes = available});
}

std::vector<int32_t> end_ids_of(const Source& source) {
  std::vector<int64_t> ids = source.config.eos_token_ids;
  ids.insert(ids.end(), source.generation.eos_token_ids.begin(),
             source.generation.eos_token_ids.end());
  if (source.tokenizer && source.tokenizer->eos_id()) ids.push_back(*source.tokenizer->eos_id());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const int64_t num_ids = num_ids_of(source);
  std::erase_if(ids, [&](int64_t id) { return id < 0 || id >= num_ids; });
  return {ids.begin(), ids.end()};
}

CoreSettings core_settings(const Source& source, const EngineOptions& o, const MemoryPlan& plan) {
  CoreSettings s;
  s.scheduler.max_prefill_chunk = o.prefill_chunk;
  s.scheduler.max_queue = o.max_queue;
  s.scheduler.max_waiting_tokens = o.max_waiting_tokens;
  s.plan = plan;
  s.prefix_cache = o.prefix_cache;
  s.model_fingerprint = source.fingerprint;
  s.seed = o.seed.value_or(0);
  s.end_ids = end_ids_of(source);
  s.pins = o.pins;
  return s;
}

int thread_count(const EngineOptions& o) {
  if (o.threads > 0) return static_cast<int>(o.threads);
  return std::min(cpu_info().num_cores, cpu_info().num_cpus());
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

int64_t nanoseconds(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

}  // namespace

Result<GenerationConfig> read_generation_config(const std::string& directory) {
  Result<std::string> text = read_model_text(directory, "generation_config.json");
  if (text.ok()) return parse_generation_config(*text, directory + "/generation_config.json");
  if (text.status().code() == StatusCode::kNotFound) return GenerationConfig{};
  return std::move(text).status();
}

SamplingParams sampling_defaults(const GenerationConfig& g) {
  SamplingParams p;
  if (g.temperature) p.temperature = static_cast<float>(*g.temperature);
  if (g.top_p) p.top_p = static_cast<float>(*g.top_p);
  if (g.top_k) p.top_k = *g.top_k;
  if (g.repetition_penalty) p.repetition_penalty = static_cast<float>(*g.repetition_penalty);
  if (g.do_sample && !*g.do_sample) p.temperature = 0.0f;
  return p;
}

Engine::~Engine() = default;

Result<MemoryPlan> Engine::plan(const EngineOptions& options) {
  FATHOM_TRY(validate(options));
  FATHOM_ASSIGN(const Source source, find_source(options));
  std::unique_ptr<Gpu> gpu;
  if (options.device == "cuda") {
    FATHOM_ASSIGN(gpu, Gpu::open());
  }
  return plan_source(source, options, thread_count(options), gpu.get());
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options,
                                             const LoadProgress& progress,
                                             std::optional<Tokenizer> tokenizer) {
  FATHOM_TRY(validate(options));
  FATHOM_ASSIGN(const Isa isa, limit_isa(options.isa, best_isa()));
  std::unique_ptr<Engine> engine(new Engine);
  engine->kernels_ = std::make_unique<const KernelSet>(KernelSet::for_cpu(isa));
  if (options.device == "cuda") {
    FATHOM_ASSIGN(engine->gpu_, Gpu::open());
  }
  engine->options_ = options;
  if (!options.seed) engine->options_.seed = random_seed();
  FATHOM_ASSIGN(engine->pool_,
                ThreadPool::create(thread_count(options),
                                   options.pin_threads ? PinThreads::kYes : PinThreads::kNo));
  FATHOM_ASSIGN(Source source, find_source(options, std::move(tokenizer)));
  FATHOM_ASSIGN(const MemoryPlan plan,
                plan_source(source, options, engine->pool_->size(), engine->gpu_.get()));

  FATHOM_ASSIGN(OpenOptions open, open_options(options));
  open.weights = options.dummy_weights ? WeightOrigin::kRandom : WeightOrigin::kCheckpoint;
  open.pool = engine->pool_.get();
  open.progress = progress;
  open.report_surplus = false;  // the dry model has said it
  FATHOM_ASSIGN(engine->model_, open_source(source, open));

  engine->default_sampling_ = sampling_defaults(source.generation);
  CoreSettings settings = core_settings(source, engine->options_, plan);
  settings.kernels = engine->kernels_.get();
  settings.gpu = engine->gpu_.get();
  settings.cuda_graphs = options.cuda_graphs ? CudaGraphs::kOn : CudaGraphs::kOff;
  engine->tokenizer_ = std::move(source.tokenizer);
  FATHOM_ASSIGN(engine->core_,
                EngineCore::create(std::move(settings), *engine->model_, *engine->pool_,
                                   engine->tokenizer(), engine->clock_));
  EngineOptions& chosen = engine->options_;
  chosen.threads = engine->pool_->size();
  chosen.isa = isa_name(isa);
  chosen.dtype = format_name(engine->model_->options().activations);
  chosen.max_model_len = plan.max_model_len;
  log_debug("options ", options_json(chosen));
  return engine;
}

Result<RequestId> Engine::submit(Request request) {
  if (request.queue_timeout_ns == 0)
    request.queue_timeout_ns = nanoseconds(options_.queue_timeout_s);
  if (request.request_timeout_ns == 0) {
    request.request_timeout_ns = nanoseconds(options_.request_timeout_s);
  }
  return core_->submit(std::move(request));
}

Result<Completion> Engine::generate(std::span<const int32_t> prompt,
                                    const SamplingParams& params,
                                    const TextCallback& on_text) {
  Completion out;
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t begin = clock_.now_ns();
  const auto seconds_since_begin = [&] {
    return static_cast<double>(clock_.now_ns() - begin) * 1e-9;
  };
  Request request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.sampling = params;
  request.on_token = [&](const TokenEvent& e) {
    if (e.token >= 0) {
      if (out.tokens.empty()) out.first_token_s = seconds_since_begin();
      out.tokens.push_back(e.token);
    }
    out.text += e.text;
    out.finish = e.finish;
    out.cached_tokens = e.cached_tokens;
    const bool last = e.finish != FinishReason::kNone;
    if (on_text && on_text(e) == Flow::kStop && !last) core_->cancel(e.id);
  };
  // A local answer has no deadline: on a small machine a long one may take hours.
  FATHOM_ASSIGN(const RequestId id, core_->submit(std::move(request)));
  while (out.finish == FinishReason::kNone) {
    if (Status s = core_->step(); !s.ok()) {
      core_->cancel(id);  // the callback refers to this frame
      return s;
    }
  }
  out.total_s = seconds_since_begin();
  if (out.finish != FinishReason::kAborted) FATHOM_TRY(finish_status(out.finish));
  return out;
}

Result<Completion> Engine::generate(std::string_view prompt,
                                    const SamplingParams& params,
                                    const TextCallback& on_text) {
  if (!tokenizer_) {
    return unsupported(str_cat("preset ", options_.preset, " has no tokenizer; give token ids"));
  }
  const std::vector<int32_t> ids = tokenizer_->encode(prompt, {.add_bos = AddBos::kAsConfigured});
  return generate(ids, params, on_text);
}

Status Engine::score(std::span<const int32_t> ids, const RowCallback& on_row) {
  if (ids.empty()) return invalid_argument("there are no ids to score");
  const int64_t width = model_->config().vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= width) {
      return invalid_argument(str_cat("ids[", i, "] is ", ids[i], ", expected 0 to ", width - 1));
    }
  }
  const auto count = static_cast<int64_t>(ids.size());
  FATHOM_ASSIGN(const auto session, ForwardSession::create(*model_, *pool_,
                                                           {.max_tokens = count,
                                                            .chunk = kScoreChunk,
                                                            .prefill_logits = LogitRows::kAll,
                                                            .kernels = kernels_.get(),
                                                            .gpu = gpu_.get()}));
  session->set_pins(options_.pins.empty() ? nullptr : &options_.pins);
  return session->prefill(0, ids, LogitRows::kAll, [&](int64_t first, const ForwardOut& out) {
    for (int64_t r = 0; r < out.logits.dim(0); ++r) {
      FATHOM_TRY(on_row(first + r, {out.logits.row<float>(r), static_cast<size_t>(width)}));
    }
    return Status{};
  });
}

Result<std::vector<double>> Engine::token_nll(std::span<const int32_t> ids) {
  std::vector<double> nll;
  nll.reserve(ids.size());
  FATHOM_TRY(score(ids, [&](int64_t position, std::span<const float> logits) {
    const auto next = static_cast<size_t>(position) + 1;
    if (next < ids.size()) nll.push_back(negative_log_likelihood(logits, ids[next]));
    return Status{};
  }));
  return nll;
}

}  // namespace fathom
