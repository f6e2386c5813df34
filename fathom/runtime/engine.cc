#include "fathom/runtime/engine.h"

#include <algorithm>

#include "fathom/base/log.h"
#include "fathom/runtime/step_fault.h"

namespace fathom {
namespace {

constexpr int64_t kMostDefaultTokens = 32'768;

// Everything that gives a cached page other bits for the same tokens and weights.
std::string compute_name(const ModelOptions& o) {
  return str_cat(format_name(o.activations),
                 o.attention.always_absorbed ? "/absorbed" : "/by-phase",
                 o.attention.fused_rope ? "/fused-rope" : "", "/chunk-", o.attention.prefill_chunk,
                 "/scale-", o.attention.kv_scale);
}

PrefixDomain domain_of(const CoreSettings& settings, const Model& model) {
  const KvLayout kv = model.kv_layout();
  return {.model_fingerprint = settings.model_fingerprint,
          .layout_version = kKvLayoutVersion,
          .kv_format = kv.format,
          .block_size = static_cast<int>(kv.page_size),
          .compute = compute_name(model.options())};
}

// What the scheduler may fill a step with is what memory was planned for.
CoreSettings with_planned_limits(CoreSettings settings, const Model& model) {
  const StepShape& shape = settings.plan.shape;
  settings.scheduler.max_num_seqs = shape.max_num_seqs;
  settings.scheduler.max_num_batched_tokens = shape.max_num_batched_tokens;
  settings.scheduler.max_model_len = settings.plan.max_model_len;
  // In one attention form a token has the same bits however it was computed, but on a GPU, whose
  // products take other variants for few rows than for many.
  settings.scheduler.share_decoded_pages |=
      model.options().attention.always_absorbed && shape.gpu == nullptr;
  return settings;
}

}  // namespace

// A sequence with what only the engine knows of it.
struct EngineCore::ActiveRequest : Sequence {
  ActiveRequest(int block_size,
                SamplingParams sampling,
                int64_t max,
                const CoreSettings& settings,
                const Tokenizer* tokenizer)
      : Sequence(block_size),
        params(std::move(sampling)),
        stop(params, max, settings.end_ids, tokenizer, settings.special_tokens) {}

  SamplingParams params;
  StopChecker stop;
  TokenCounts counts;
  uint64_t seed = 0;
  uint64_t stream = 0;
  bool ended = false;  // its last event was sent
  TokenCallback on_token;
};

// While one exists, callbacks may be running or the plan may be in use: ended requests stay.
class EngineCore::Busy {
 public:
  explicit Busy(EngineCore& core) : core_(core) { ++core_.busy_; }

  ~Busy() {
    if (--core_.busy_ == 0) core_.graveyard_.clear();
  }

  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  EngineCore& core_;
};

EngineCore::EngineCore(CoreSettings settings,
                       const Model& model,
                       ThreadPool& pool,
                       const Tokenizer* tokenizer,
                       const Clock& clock)
    : settings_(with_planned_limits(std::move(settings), model)),
      model_(model),
      tokenizer_(tokenizer),
      clock_(clock),
      pool_(settings_.plan.num_pages),
      cache_(settings_.prefix_cache
                 ? std::make_unique<PrefixCache>(pool_, domain_of(settings_, model))
                 : nullptr),
      scheduler_(
          settings_.scheduler, pool_, cache_.get(), static_cast<int>(model.kv_layout().page_size)) {
  exec_.pool = &pool;
  exec_.num_threads = pool.size();
  if (settings_.gpu != nullptr) {
    exec_.backend = Backend::kCuda;
    exec_.stream = &settings_.gpu->stream();
    exec_.side = &settings_.gpu->side();
    exec_.device = &settings_.gpu->info();
  }
  exec_.activations = &activations_;
  exec_.scratch = &scratch_;
  exec_.pins = settings_.pins.empty() ? nullptr : &settings_.pins;
  row_of_ = [this](const Sequence& s) { return sample_row(s); };
}

EngineCore::~EngineCore() = default;

Result<std::unique_ptr<EngineCore>> EngineCore::create(CoreSettings settings,
                                                       const Model& model,
                                                       ThreadPool& pool,
                                                       const Tokenizer* tokenizer,
                                                       const Clock& clock) {
  std::unique_ptr<EngineCore> core(
      new EngineCore(std::move(settings), model, pool, tokenizer, clock));
  FATHOM_TRY(core->allocate(pool));
  return core;
}

Status EngineCore::allocate(ThreadPool& pool) {
  const MemoryPlan& plan = settings_.plan;
  FATHOM_CHECK(plan.shape.num_threads == pool.size(),
               "the plan is for as many threads as there are");
  const DeviceKind device = settings_.gpu == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda;
  FATHOM_CHECK(model_.options().device == device, "the model lies where the engine runs");
  FATHOM_ASSIGN(kv_, KvStorage::allocate(plan.kv, plan.num_pages, device));
  FATHOM_ASSIGN(Buffer activations,
                Buffer::allocate(device, plan.step.activation_bytes, "the activations of a step"));
  FATHOM_ASSIGN(Buffer scratch,
                Buffer::allocate(device, plan.step.scratch_bytes, "the workspaces of kernels"));
  activations_ = Arena(std::move(activations));
  scratch_ = Arena(std::move(scratch));
  FATHOM_ASSIGN(runner_, StepRunner::create(model_, kv_, exec_, plan.shape, settings_.cuda_graphs));
  return {};
}

int64_t EngineCore::default_max_tokens(int64_t prompt_length) const {
  const int64_t context = settings_.scheduler.max_model_len;
  const int64_t pages = settings_.plan.kv_tokens();
  return std::clamp<int64_t>(std::min(context, pages) - prompt_length, 1, kMostDefaultTokens);
}

Status EngineCore::check(const Request& request) const {
  const int64_t num_ids = settings_.plan.shape.num_ids;
  if (request.prompt.empty()) {
    return invalid_argument("the prompt is empty, expected at least one token");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (const int32_t id = request.prompt[i]; id < 0 || id >= num_ids) {
      return invalid_argument(str_cat("prompt[", i, "] is ", id, ", expected 0 to ", num_ids - 1));
    }
  }
  if (tokenizer_ == nullptr && !request.sampling.stop.empty()) {
    return invalid_argument("stop strings need a tokenizer, and this engine has none");
  }
  return validate(request.sampling, num_ids);
}

Result<RequestId> EngineCore::submit(Request request) {
  Busy busy(*this);
  if (faulted_) return device_lost("the engine had a fault and takes no more requests");
  FATHOM_TRY(check(request));
  const auto prompt_length = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens =
      request.sampling.max_tokens.value_or(default_max_tokens(prompt_length));
  // Before anything is sized by max_tokens: the sum must be meaningful.
  if (max_tokens > settings_.scheduler.max_model_len - prompt_length) {
    return invalid_argument(str_cat("context_length_exceeded: prompt of ", prompt_length,
                                    " tokens and max_tokens ", max_tokens, ", expected at most ",
                                    settings_.scheduler.max_model_len, " together"));
  }
  auto r = std::make_unique<ActiveRequest>(static_cast<int>(settings_.plan.kv.page_size),
                                           std::move(request.sampling), max_tokens, settings_,
                                           tokenizer_);
  r->id = next_id_;
  r->counts = TokenCounts(r->params, request.prompt, max_tokens, settings_.plan.shape.num_ids);
  r->tokens = std::move(request.prompt);
  r->prompt_length = prompt_length;
  r->max_tokens = max_tokens;
  r->cache_salt = std::move(request.cache_salt);
  r->seed = r->params.seed.value_or(settings_.seed);
  r->stream = r->params.seed ? 0 : r->id;
  r->on_token = std::move(request.on_token);
  const int64_t now = clock_.now_ns();
  if (request.queue_timeout_ns > 0) r->queue_deadline_ns = now + request.queue_timeout_ns;
  if (request.request_timeout_ns > 0) r->deadline_ns = now + request.request_timeout_ns;
  FATHOM_TRY(scheduler_.submit(*r));
  ++next_id_;
  const RequestId id = r->id;
  requests_.emplace(id, std::move(r));
  return id;
}

SampleRow EngineCore::sample_row(const Sequence& sequence) const {
  const auto& r = static_cast<const ActiveRequest&>(sequence);
  return {.params = &r.params,
          .counts = &r.counts,
          .banned = r.stop.banned(),
          .seed = r.seed,
          .stream = r.stream,
          .position = r.num_tokens()};
}

Status EngineCore::step() {
  Busy busy(*this);
  if (faulted_) return device_lost("the engine had a fault and takes no more requests");
  expire();
  const StepPlan& plan = scheduler_.plan();
  if (plan.empty()) return {};
  ++num_steps_;
  if (Status s = runner_->run(plan, row_of_); !s.ok()) {
    scheduler_.finish_step();
    fault(s);
    return step_fault(std::move(s).add_context("while computing a step"), exec_.pins);
  }
  commit(plan);
  scheduler_.finish_step();
  return {};
}

void EngineCore::expire() {
  expired_.clear();
  scheduler_.find_expired(clock_.now_ns(), expired_);
  for (size_t i = 0; i < expired_.size(); ++i) {
    const auto [sequence, reason] = expired_[i];
    cancel(sequence->id, reason);
  }
}

void EngineCore::commit(const StepPlan& plan) {
  size_t row = 0;
  for (const auto* items : {&plan.prefill, &plan.decode}) {
    for (const StepItem& item : *items) {
      if (items == &plan.prefill) prompt_tokens_ += item.count;
      if (item.yields_token) {
        commit_token(item, runner_->results()[row++]);
      } else {
        scheduler_.commit(item, -1, FinishReason::kNone);
      }
    }
  }
}

void EngineCore::commit_token(const StepItem& item, const SampleResult& result) {
  auto& r = static_cast<ActiveRequest&>(*item.sequence);
  if (r.abort_reason != FinishReason::kNone) return;  // it was told already
  if (!result.finite) {
    ++numerical_errors_;
    log_warn("request ", r.id, ": logits are not finite at token ", r.num_tokens());
    scheduler_.commit_failed(item);
    end(r, FinishReason::kNumericalError);
    return;
  }
  ++generated_tokens_;
  const int64_t index = r.num_generated();
  const StopOutcome outcome = r.stop.push(result.token);
  r.counts.add(result.token);
  scheduler_.commit(item, result.token, outcome.finish);
  tell(r, {.id = r.id,
           .token = result.token,
           .index = index,
           .text = outcome.text,
           .logprob = result.logprob,
           .top_logprobs = result.top_logprobs,
           .finish = outcome.finish,
           .stop_text = outcome.stop_text,
           .cached_tokens = r.cached_tokens});
}

bool EngineCore::cancel(RequestId id, FinishReason reason) {
  Busy busy(*this);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  ActiveRequest& r = *found->second;
  if (!scheduler_.abort(r, reason)) return false;
  end(r, reason);
  return true;
}

void EngineCore::fault(const Status& status) {
  faulted_ = true;
  log_error("engine fault: ", status.message());
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_)
    ids.push_back(id);
  std::ranges::sort(ids);
  for (RequestId id : ids)
    cancel(id, FinishReason::kEngineFault);
}

// An end without a token: what was held back of its text is certain now.
void EngineCore::end(ActiveRequest& r, FinishReason reason) {
  tell(r,
       {.id = r.id, .text = r.stop.release(), .finish = reason, .cached_tokens = r.cached_tokens});
}

void EngineCore::tell(ActiveRequest& r, const TokenEvent& event) {
  if (r.ended) return;
  r.ended = event.finish != FinishReason::kNone;
  if (r.ended) bury(r);
  if (r.on_token) r.on_token(event);
}

void EngineCore::bury(ActiveRequest& r) {
  const auto found = requests_.find(r.id);
  FATHOM_CHECK(found != requests_.end(), "a request ends once");
  graveyard_.push_back(std::move(found->second));
  requests_.erase(found);
}

CoreStats EngineCore::stats() const {
  return {.scheduler = scheduler_.stats(),
          .prefix = cache_ ? cache_->stats() : PrefixCacheStats{},
          .num_pages = pool_.num_pages(),
          .owned_pages = pool_.num_owned(),
          .private_pages = pool_.num_private(),
          .cached_pages = pool_.num_cached(),
          .num_steps = num_steps_,
          .prompt_tokens = prompt_tokens_,
          .generated_tokens = generated_tokens_,
          .numerical_errors = numerical_errors_};
}

}  // namespace fathom
