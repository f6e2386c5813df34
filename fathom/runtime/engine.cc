#include "fathom/runtime/engine.h"

#include <algorithm>
#include <utility>

#include "fathom/base/log.h"
#include "fathom/runtime/engine_request.h"

namespace fathom {
namespace {

constexpr int64_t kMostDefaultTokens = 32'768;

// Everything that gives a cached page other bits for the same tokens and weights.
std::string compute_name(const ModelOptions& o) {
  return str_cat(
      format_name(o.activations), o.attention.always_absorbed ? "/absorbed" : "/by-phase",
      o.batch_invariant ? "/batch-invariant" : "", o.attention.fused_rope ? "/fused-rope" : "",
      o.chain_streams ? "/chained" : "", o.moe.join_router ? "/joined-router" : "", "/chunk-",
      o.attention.prefill_chunk, "/scale-", o.attention.kv_scale);
}

PrefixDomain domain_of(const CoreSettings& settings, const Model& model) {
  return {.model_fingerprint = settings.model_fingerprint,
          .layout = model.cache_layout().fingerprint(),
          .compute = compute_name(model.options()),
          .following = settings.proposer != nullptr && settings.proposer->follows() ? 1 : 0};
}

// What the scheduler may fill a step with is what memory was planned for.
CoreSettings with_planned_limits(CoreSettings settings, const Model& model) {
  const StepShape& shape = settings.plan.shape;
  settings.scheduler.max_num_seqs = shape.max_num_seqs;
  settings.scheduler.max_num_batched_tokens = shape.max_num_batched_tokens;
  settings.scheduler.max_model_len = settings.plan.max_model_len;
  settings.scheduler.trees = shape.trees;
  // In one attention form a token has the same bits however it was computed; on a GPU, whose
  // products take other variants for few rows than for many, in one form of all kernels.
  const ModelOptions& options = model.options();
  settings.scheduler.share_decoded_pages |=
      options.attention.always_absorbed && (shape.gpu == nullptr || options.batch_invariant);
  return settings;
}

}  // namespace

// While one exists, callbacks may be running: ended requests stay, as they do while a plan is in
// use.
class EngineCore::Busy {
 public:
  explicit Busy(EngineCore& core) : core_(core) { ++core_.busy_; }

  ~Busy() {
    if (--core_.busy_ == 0 && core_.plan_ == nullptr) core_.graveyard_.clear();
  }

  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  EngineCore& core_;
};

EngineCore::EngineCore(CoreSettings settings,
                       const Model& model,
                       const Tokenizer* tokenizer,
                       const Clock& clock)
    : settings_(with_planned_limits(std::move(settings), model)),
      model_(model),
      tokenizer_(tokenizer),
      clock_(clock),
      pools_(settings_.plan.cache, settings_.plan.num_blocks, settings_.plan.num_slots),
      cache_(settings_.prefix_cache
                 ? std::make_unique<PrefixCache>(pools_, domain_of(settings_, model))
                 : nullptr),
      scheduler_(settings_.scheduler, pools_, cache_.get()) {
  const StepShape& shape = settings_.plan.shape;
  FATHOM_CHECK(shape.max_queries <= 1 + kMostTreeDrafts, "a step has room for so many drafts");
  const auto seqs = static_cast<size_t>(shape.max_num_seqs);
  prefill_.reserve(seqs);
  decode_.reserve(seqs);
  rows_.reserve(static_cast<size_t>(shape.max_samples()));
  draft_places_.reserve(seqs);
  if (settings_.proposer != nullptr && settings_.proposer->follows()) {
    FATHOM_CHECK(shape.drafts, "the plan has room for the passes of a proposer");
    computed_.reserve(seqs);
    const auto tokens = static_cast<size_t>(shape.max_num_batched_tokens + shape.max_samples());
    next_tokens_.reserve(tokens);
    hidden_rows_.reserve(tokens);
    kept_results_.reserve(static_cast<size_t>(shape.max_samples()));
    settings_.proposer->reserve(shape);
  }
  for (auto* of_drafts : {&drafted_, &parents_, &depths_, &kept_, &tree_path_})
    of_drafts->reserve(static_cast<size_t>(shape.max_samples()));
  if (shape.trees) moves_.reserve(shape.max_samples());
  accepted_.resize(static_cast<size_t>(shape.max_queries));
  accepted_ids_.reserve(accepted_.size());
  masks_.resize(static_cast<size_t>(shape.max_samples() * mask_words(shape.num_ids)));
}

EngineCore::~EngineCore() = default;

Result<std::unique_ptr<EngineCore>> EngineCore::create(CoreSettings settings,
                                                       const Model& model,
                                                       const Compute& compute,
                                                       const Tokenizer* tokenizer,
                                                       const Clock& clock) {
  const MemoryPlan& plan = settings.plan;
  FATHOM_CHECK(plan.shape.num_threads == compute.pool->size(),
               "the plan is for as many threads as there are");
  ExecutorSettings executor{.shape = plan.shape,
                            .num_blocks = plan.num_blocks,
                            .num_slots = plan.num_slots,
                            .memory = plan.step,
                            .graphs = settings.cuda_graphs,
                            .pins = settings.pins};
  std::unique_ptr<EngineCore> core(new EngineCore(std::move(settings), model, tokenizer, clock));
  FATHOM_ASSIGN(core->executor_, Executor::create(model, compute, std::move(executor)));
  return core;
}

int64_t EngineCore::default_max_tokens(int64_t prompt_length) const {
  const int64_t context = settings_.scheduler.max_model_len;
  const int64_t pages = settings_.plan.cached_tokens();
  return std::clamp<int64_t>(std::min(context, pages) - prompt_length, 1, kMostDefaultTokens);
}

int64_t EngineCore::max_tokens_of(const Request& request) const {
  return request.sampling.max_tokens.value_or(
      default_max_tokens(static_cast<int64_t>(request.prompt.size())));
}

Status EngineCore::admissible(const Request& request) const {
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
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > kMaxTopLogprobs) {
    return invalid_argument(str_cat("prompt_logprobs is ", request.prompt_logprobs,
                                    ", expected 0 to ", kMaxTopLogprobs));
  }
  FATHOM_TRY(validate(request.sampling, num_ids));
  return scheduler_.admissible(static_cast<int64_t>(request.prompt.size()), max_tokens_of(request));
}

Result<RequestId> EngineCore::submit(Request request) {
  Busy busy(*this);
  if (faulted_) return device_lost("the engine had a fault and takes no more requests");
  FATHOM_TRY(admissible(request));
  const auto prompt_length = static_cast<int64_t>(request.prompt.size());
  const int64_t max_tokens = max_tokens_of(request);
  auto r = std::make_unique<ActiveRequest>(std::move(request.sampling), max_tokens, settings_,
                                           tokenizer_);
  r->id = next_id_;
  r->counts = TokenCounts(r->params, request.prompt, max_tokens, settings_.plan.shape.num_ids);
  r->tokens = std::move(request.prompt);
  r->prompt_length = prompt_length;
  r->max_tokens = max_tokens;
  r->cache_salt = std::move(request.cache_salt);
  r->seed = r->params.seed.value_or(settings_.seed);
  r->stream = r->params.seed ? 0 : r->id;
  for (auto* of_drafts : {&r->drafts, &r->draft_parents, &r->path})
    of_drafts->reserve(accepted_.size());
  r->scores_prompt = request.prompt_logprobs >= 0;
  if (r->scores_prompt) {
    r->scoring = greedy_sampling();
    r->scoring.top_logprobs = request.prompt_logprobs;
    r->listener->prompt_logprobs.reserve(static_cast<size_t>(prompt_length - 1));
  }
  r->constraint = std::move(request.constraint);
  r->listener->on_token = std::move(request.on_token);
  const int64_t now = clock_.now_ns();
  if (request.queue_timeout_ns > 0) r->queue_deadline_ns = now + request.queue_timeout_ns;
  if (request.request_timeout_ns > 0) r->deadline_ns = now + request.request_timeout_ns;
  FATHOM_TRY(scheduler_.submit(*r));
  ++next_id_;
  const RequestId id = r->id;
  requests_.emplace(id, std::move(r));
  return id;
}

Status EngineCore::step() {
  FATHOM_TRY(start_step());
  return finish_step();
}

Status EngineCore::start_step() {
  FATHOM_CHECK(plan_ == nullptr, "a step is finished before the next one starts");
  Busy busy(*this);
  if (faulted_) return device_lost("the engine had a fault and takes no more requests");
  expire();
  if (Status s = propose(); !s.ok()) return fault(std::move(s));
  const StepPlan& plan = scheduler_.plan(prefill_limit());
  if (plan.empty()) return {};
  ++num_steps_;
  step_begin_ns_ = clock_.now_ns();
  plan_ = &plan;
  if (Status s = start(plan); !s.ok()) return fault(std::move(s));
  held_.tell_all();
  return {};
}

Status EngineCore::finish_step() {
  if (plan_ == nullptr) return {};
  Busy busy(*this);
  Result<StepResults> results = executor_->finish();
  if (!results.ok()) return fault(std::move(results).status());
  results_ = results->samples;
  measure(*plan_, clock_.now_ns() - step_begin_ns_);
  if (Status s = find_paths(); !s.ok()) return fault(std::move(s));
  if (Status s = follow(results->hidden); !s.ok()) return fault(std::move(s));
  commit(*plan_);
  end_plan();
  if (scheduler_.idle()) held_.tell_all();
  return {};
}

void EngineCore::end_plan() {
  scheduler_.finish_step();
  plan_ = nullptr;
}

// Prompt tokens for which a step beside decodes takes about as long as it should.
int64_t EngineCore::prefill_limit() const {
  if (settings_.step_target_ns <= 0 || prompt_token_ns_ <= 0) return INT64_MAX;
  constexpr int64_t kUnit = Scheduler::kLeastPrefill;
  const double left = static_cast<double>(settings_.step_target_ns) - decode_step_ns_;
  const double most = static_cast<double>(settings_.scheduler.max_num_batched_tokens);
  const auto tokens = static_cast<int64_t>(std::clamp(left / prompt_token_ns_, 0.0, most));
  return std::max(tokens / kUnit * kUnit, kUnit);
}

// Steps with few prompt tokens say little of what one takes.
void EngineCore::measure(const StepPlan& plan, int64_t step_ns) {
  constexpr double kWeight = 0.25;  // of the newest step: the last dozen count
  const auto add = [](double& mean, double value) {
    mean = mean == 0 ? value : mean + kWeight * (value - mean);
  };
  int64_t prompts = 0;
  for (const StepItem& item : plan.prefill)
    prompts += item.count;
  const auto taken = static_cast<double>(step_ns);
  if (prompts == 0) {
    add(decode_step_ns_, taken);
    if (settings_.proposer != nullptr) balance_.add_step(plan.num_tokens, step_ns);
  } else if (prompts >= Scheduler::kLeastPrefill) {
    // The part of a step that does not grow with its prompts is that of the decodes.
    const double beside = plan.decode.empty() ? 0 : std::min(decode_step_ns_, 0.9 * taken);
    add(prompt_token_ns_, (taken - beside) / static_cast<double>(prompts));
  }
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
      if (item.all_logits) {
        const auto scored = static_cast<size_t>(item.count - (item.yields_token ? 1 : 0));
        const auto results = results_.subspan(row, scored);
        row += scored;
        auto& r = static_cast<ActiveRequest&>(*item.sequence);
        if (r.abort_reason == FinishReason::kNone && !take_scores(item, results)) {
          fail(r, item);
          row += item.yields_token ? 1 : 0;
          continue;
        }
      }
      if (!item.yields_token) {
        scheduler_.commit(item, {}, FinishReason::kNone);
        continue;
      }
      const auto rows = static_cast<size_t>(1 + item.num_drafts());
      commit_tokens(item, results_.subspan(row, rows));
      row += rows;
    }
  }
}

// The grammar did not allow a token that its own mask let through, which only an error in one of
// the two can do; an end token ends the answer all the same.
void EngineCore::refused(const ActiveRequest& r, Accepted& a) {
  if (a.outcome.finish != FinishReason::kNone) return;
  log_error("request ", r.id, ": its constraint does not accept token ", a.token, " at ",
            r.num_generated(), ", though its mask allowed it");
  a.outcome.finish = FinishReason::kConstraintFault;
}

// A row without a token.
void EngineCore::fail(ActiveRequest& r, const StepItem& item) {
  const FinishReason reason =
      r.nothing_allowed ? FinishReason::kConstraintFault : FinishReason::kNumericalError;
  if (r.nothing_allowed) {
    log_error("request ", r.id, ": its constraint allows no token at ", r.num_generated());
  } else {
    ++numerical_errors_;
    log_warn("request ", r.id, ": logits are not finite at token ", r.num_tokens());
  }
  scheduler_.commit_failed(item, reason);
  end(r, reason);
}

void EngineCore::commit_tokens(const StepItem& item, std::span<const SampleResult> results) {
  auto& r = static_cast<ActiveRequest&>(*item.sequence);
  if (r.abort_reason != FinishReason::kNone) return;  // it was told already
  const int64_t drafts = item.num_drafts();
  const int64_t first = r.num_generated();
  const int64_t count = accept(r, results);
  count_drafts(r, drafts, std::max<int64_t>(count - 1, 0));
  if (count == 0) {
    fail(r, item);
    return;
  }
  generated_tokens_ += count;
  scheduler_.commit(item, accepted_ids_, accepted_[static_cast<size_t>(count - 1)].outcome.finish);
  r.path.clear();
  // The callback of a token may end the request; nothing is told behind its end.
  for (int64_t i = 0; i < count; ++i) {
    const Accepted& a = accepted_[static_cast<size_t>(i)];
    const bool scored = r.scores_prompt && first + i == 0;
    tell(r, {.id = r.id,
             .token = a.token,
             .index = first + i,
             .text = a.outcome.text,
             .logprob = a.logprob,
             .top_logprobs = a.top_logprobs,
             .finish = a.outcome.finish,
             .stop_text = a.outcome.stop_text,
             .cached_tokens = r.cached_tokens,
             .drafted_tokens = r.num_drafted,
             .accepted_tokens = r.num_accepted,
             .started_ns = r.started_ns,
             .prompt_logprobs = scored ? &r.listener->prompt_logprobs : nullptr});
  }
}

bool EngineCore::cancel(RequestId id, FinishReason reason) {
  Busy busy(*this);
  held_.tell_all();  // what came before its end
  const auto found = requests_.find(id);
  if (found == requests_.end()) return false;
  ActiveRequest& r = *found->second;
  if (!scheduler_.abort(r, reason)) return false;
  end(r, reason);
  return true;
}

Status EngineCore::fault(Status status) {
  if (plan_ != nullptr) end_plan();
  faulted_ = true;
  // Unsupported is a pin that the step cannot obey (step_fault): the caller's choice and no fault.
  if (status.code() != StatusCode::kUnsupported) log_error("engine fault: ", status.message());
  std::vector<RequestId> ids;
  for (const auto& [id, request] : requests_)
    ids.push_back(id);
  std::ranges::sort(ids);
  for (RequestId id : ids)
    cancel(id, FinishReason::kEngineFault);
  return std::move(status).add_context("while computing a step");
}

// An end without a token: what was held back of its text is certain now. It is told at once.
void EngineCore::end(ActiveRequest& r, FinishReason reason) {
  if (std::exchange(r.ended, true)) return;
  const TokenEvent event{.id = r.id,
                         .text = r.stop.release(),
                         .finish = reason,
                         .cached_tokens = r.cached_tokens,
                         .drafted_tokens = r.num_drafted,
                         .accepted_tokens = r.num_accepted,
                         .started_ns = r.started_ns};
  bury(r);
  r.listener->tell(event);
}

void EngineCore::tell(ActiveRequest& r, const TokenEvent& event) {
  if (r.ended) return;
  r.ended = event.finish != FinishReason::kNone;
  if (r.ended) bury(r);
  if (executor_->works_apart()) {
    held_.add(r.listener, event);
  } else {
    r.listener->tell(event);
  }
}

void EngineCore::bury(ActiveRequest& r) {
  const auto found = requests_.find(r.id);
  FATHOM_CHECK(found != requests_.end(), "a request ends once");
  if (settings_.proposer != nullptr) settings_.proposer->forget(r.id);
  graveyard_.push_back(std::move(found->second));
  requests_.erase(found);
}

CoreStats EngineCore::stats() const {
  return {.scheduler = scheduler_.stats(),
          .prefix = cache_ ? cache_->stats() : PrefixCacheStats{},
          .num_pages = pools_.blocks.num_pages(),
          .owned_pages = pools_.blocks.num_owned(),
          .private_pages = pools_.blocks.num_private(),
          .cached_pages = pools_.blocks.num_cached(),
          .num_steps = num_steps_,
          .prompt_tokens = prompt_tokens_,
          .generated_tokens = generated_tokens_,
          .drafted_tokens = drafted_tokens_,
          .accepted_tokens = accepted_tokens_,
          .most_drafts =
              settings_.proposer == nullptr ? 0 : settings_.proposer->reach(most_drafts()).depth,
          .num_drafts = num_drafts_,
          .accepted_at = accepted_at_,
          .draft_pauses = draft_pauses_,
          .draft_batch_limit = draft_batch_limit(),
          .numerical_errors = numerical_errors_};
}

}  // namespace fathom
