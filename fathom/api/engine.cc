#include "fathom/api/engine.h"

#include <algorithm>
#include <random>

#include "fathom/base/log.h"
#include "fathom/os/memory.h"
#include "fathom/os/sha256.h"
#include "fathom/runtime/check_pins.h"
#include "fathom/runtime/eval/evaluate.h"
#include "fathom/runtime/forward_session.h"
#include "fathom/weights/checkpoint/model_folder.h"

namespace fathom {
namespace {

// Tokens of a pass of score(): its logits are chunk * V floats.
constexpr int64_t kScoreChunk = 64;

// Of the configuration and of every tensor's name, format, shape and place. Pages never leave the
// process, and within it the tensors of an open checkpoint do not change.
std::string fingerprint_of(const ModelSource& source, const EngineOptions& o) {
  Sha256 hash;
  hash.update(source.title).update("\n").update(source.config_text);
  if (o.dummy_weights) {
    hash.update(str_cat("\ndummy ", o.dummy_seed, " ", find_option("format")->get(o)));
  }
  if (source.checkpoint) {
    for (const TensorRef& t : source.checkpoint->tensors()) {
      hash.update(str_cat("\n", t.file, " ", t.entry.name, " ", format_name(t.entry.dtype), " ",
                          t.entry.begin, " ", t.entry.end));
    }
  }
  return to_hex(hash.finish());
}

int64_t num_ids_of(const EngineSource& source) {
  const int64_t width = source.model.config.vocab_size;
  return source.tokenizer ? std::min<int64_t>(width, source.tokenizer->vocab_size()) : width;
}

Result<MemoryPlan> plan_source(const Model& dry,
                               const EngineSource& source,
                               const EngineOptions& o,
                               const Compute& compute) {
  int64_t available = 0;
  if (compute.gpu == nullptr) {
    available = host_memory().available_bytes;
  } else {
    FATHOM_ASSIGN(available, cuda_free_bytes());
  }
  const DraftShape drafts = o.draft_shape();
  FATHOM_TRY(check_speculative(o.speculative, drafts, dry));
  return plan_memory(dry, {.max_model_len = o.max_model_len,
                           .max_num_seqs = o.max_num_seqs,
                           .max_num_batched_tokens = o.max_num_batched_tokens,
                           .num_ids = num_ids_of(source),
                           .max_queries = most_queries(o.speculative, drafts),
                           .drafts = o.speculative == Speculative::kMtp,
                           .trees = o.speculative == Speculative::kMtp && drafts.is_tree(),
                           .num_threads = compute.pool->size(),
                           .kernels = &compute.kernels(),
                           .gpu = compute.device(),
                           .sizing = o.kv_pool,
                           .memory_fraction = o.memory_fraction,
                           .available_bytes = available});
}

std::vector<int32_t> end_ids_of(const EngineSource& source) {
  std::vector<int64_t> ids = source.model.config.eos_token_ids;
  const std::vector<int64_t>& generation = source.model.generation.eos_token_ids;
  ids.insert(ids.end(), generation.begin(), generation.end());
  if (source.tokenizer && source.tokenizer->eos_id()) ids.push_back(*source.tokenizer->eos_id());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  const int64_t num_ids = num_ids_of(source);
  std::erase_if(ids, [&](int64_t id) { return id < 0 || id >= num_ids; });
  return {ids.begin(), ids.end()};
}

CoreSettings core_settings(const EngineSource& source,
                           const EngineOptions& o,
                           const MemoryPlan& plan) {
  CoreSettings s;
  s.scheduler.max_prefill_chunk = o.prefill_chunk;
  s.scheduler.max_queue = o.max_queue;
  s.scheduler.max_waiting_tokens = o.max_waiting_tokens;
  s.step_target_ns = o.step_target_ms * 1'000'000;
  s.plan = plan;
  s.prefix_cache = o.prefix_cache;
  s.model_fingerprint = fingerprint_of(source.model, o);
  s.seed = o.seed.value_or(0);
  s.end_ids = end_ids_of(source);
  s.pins = o.pins;
  return s;
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

int64_t nanoseconds(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

}  // namespace

SamplingParams sampling_defaults(const GenerationConfig& g) {
  SamplingParams p;
  if (g.temperature) p.temperature = static_cast<float>(*g.temperature);
  if (g.top_p) p.top_p = static_cast<float>(*g.top_p);
  if (g.top_k) p.top_k = *g.top_k;
  if (g.repetition_penalty) p.repetition_penalty = static_cast<float>(*g.repetition_penalty);
  if (g.do_sample && !*g.do_sample) p.temperature = 0.0f;
  return p;
}

Result<EngineSource> EngineSource::open(const EngineOptions& options) {
  FATHOM_ASSIGN(ModelSource model, open_source(options));
  EngineSource source{.model = std::move(model), .tokenizer = {}};
  if (source.model.checkpoint || !options.tokenizer.empty()) {
    const std::string& dir = options.tokenizer.empty() ? options.model : options.tokenizer;
    Result<Tokenizer> tokenizer = Tokenizer::load(dir);
    if (!tokenizer.ok()) return hint_at_files(std::move(tokenizer).status(), dir);
    source.tokenizer = std::move(tokenizer).value();
  }
  return source;
}

Engine::~Engine() = default;

Status check_vocabulary(const EngineSource& source, const EngineOptions& options) {
  const int64_t width = source.model.config.vocab_size;
  if (!source.tokenizer || source.tokenizer->vocab_size() <= width) return {};
  const std::string& dir = options.tokenizer.empty() ? source.model.title : options.tokenizer;
  return corrupt(str_cat(dir, "/tokenizer.json: the largest id is ",
                         source.tokenizer->vocab_size() - 1, ", expected at most ", width - 1,
                         " (vocab_size of config.json)"));
}

Result<MemoryPlan> Engine::plan(const EngineOptions& options) {
  FATHOM_TRY(validate(options));
  FATHOM_ASSIGN(const EngineSource source, EngineSource::open(options));
  return plan(options, source);
}

Result<MemoryPlan> Engine::plan(const EngineOptions& options, const EngineSource& source) {
  FATHOM_TRY(validate(options));
  FATHOM_TRY(check_vocabulary(source, options));
  FATHOM_ASSIGN(const Machine machine, set_up_machine(options));
  FATHOM_ASSIGN(const std::unique_ptr<Model> dry,
                open_model(source.model, options.placement(),
                           {.model = model_options(options), .weights = WeightOrigin::kNone}));
  FATHOM_TRY(check_pins(options.pins, *dry, machine.compute()));
  return plan_source(*dry, source, options, machine.compute());
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options,
                                             const LoadProgress& progress) {
  FATHOM_TRY(validate(options));
  FATHOM_ASSIGN(EngineSource source, EngineSource::open(options));
  return load(options, std::move(source), progress);
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options,
                                             EngineSource source,
                                             const LoadProgress& progress) {
  FATHOM_TRY(validate(options));
  FATHOM_TRY(check_vocabulary(source, options));
  std::unique_ptr<Engine> engine(new Engine);
  engine->options_ = options;
  if (!options.seed) engine->options_.seed = random_seed();
  FATHOM_ASSIGN(engine->machine_, set_up_machine(options));
  const Machine& machine = engine->machine_;

  MemoryPlan plan;
  OpenOptions open = open_options(options, machine);
  open.progress = progress;
  open.admit = [&, usual = open.admit](const Model& dry) -> Status {
    FATHOM_TRY(usual(dry));
    FATHOM_ASSIGN(plan, plan_source(dry, source, options, machine.compute()));
    return {};
  };
  FATHOM_ASSIGN(engine->model_, open_model(source.model, options.placement(), open));

  engine->default_sampling_ = sampling_defaults(source.model.generation);
  CoreSettings settings = core_settings(source, engine->options_, plan);
  settings.cuda_graphs = options.cuda_graphs ? CudaGraphs::kOn : CudaGraphs::kOff;
  engine->proposer_ = make_proposer(options.speculative, options.draft_shape());
  settings.proposer = engine->proposer_.get();
  engine->tokenizer_ = std::move(source.tokenizer);
  FATHOM_ASSIGN(engine->core_,
                EngineCore::create(std::move(settings), *engine->model_, machine.compute(),
                                   engine->tokenizer(), engine->clock_));
  EngineOptions& chosen = engine->options_;
  chosen.threads = machine.pool->size();
  chosen.isa = machine.isa;
  chosen.dtype = engine->model_->options().activations;
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
                                    const TextCallback& on_text,
                                    const std::function<Flow()>& between_steps) {
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
    out.drafted_tokens = e.drafted_tokens;
    out.accepted_tokens = e.accepted_tokens;
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
    if (out.finish == FinishReason::kNone && between_steps && between_steps() == Flow::kStop) {
      core_->cancel(id);
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
    return unsupported(
        str_cat("preset ", options_.preset, " has no tokenizer\nhint: give token ids"));
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
  FATHOM_ASSIGN(const auto session, ForwardSession::create(*model_, machine_.compute(),
                                                           {.max_tokens = count,
                                                            .chunk = kScoreChunk,
                                                            .prefill_logits = LogitRows::kAll,
                                                            .pins = options_.pins}));
  return session->prefill(0, ids, LogitRows::kAll, [&](int64_t first, const StepResults& out) {
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
