#include "fathom/runtime/engine.h"

#include <algorithm>
#include <utility>

#include "fathom/base/log.h"

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
  return {.model_fingerprint = settings.model_fingerprint,
          .layout = model.cache_layout().fingerprint(),
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

void forbid(std::span<uint32_t> mask, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens)
    mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

// Whether a mask has a bit for a token that is not among these.
bool allows_other_than(std::span<const uint32_t> mask, std::span<const int32_t> banned) {
  for (size_t i = 0; i < mask.size(); ++i) {
    uint32_t word = mask[i];
    for (const int32_t token : banned)
      if (static_cast<size_t>(token) / 32 == i) word &= ~(1u << (token % 32));
    if (word != 0) return true;
  }
  return false;
}

}  // namespace

// A sequence with what only the engine knows of it.
struct EngineCore::ActiveRequest : Sequence {
  ActiveRequest(SamplingParams sampling,
                int64_t max,
                const CoreSettings& settings,
                const Tokenizer* tokenizer)
      : params(std::move(sampling)),
        stop(params, max, settings.end_ids, tokenizer, settings.special_tokens) {}

  SamplingParams params;
  StopChecker stop;
  TokenCounts counts;
  uint64_t seed = 0;
  uint64_t stream = 0;
  bool ended = false;  // its last event was made
  int64_t started_ns = 0;
  SamplingParams scoring;  // of the rows of its prompt, if that is scored
  std::shared_ptr<TokenConstraint> constraint;
  bool nothing_allowed = false;  // its last mask left no token
  bool only_end_left = false;    // or none but the model's end tokens
  std::shared_ptr<EventListener> listener = std::make_shared<EventListener>();

  // Rows of drafted tokens are independent: what may come at one place is not changed by the token
  // before it.
  bool takes_drafts() const {
    return !params.has_penalties() && stop.banned().empty() && constraint == nullptr;
  }
};

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
  const auto seqs = static_cast<size_t>(shape.max_num_seqs);
  prefill_.reserve(seqs);
  decode_.reserve(seqs);
  rows_.reserve(static_cast<size_t>(shape.max_samples()));
  drafted_.reserve(static_cast<size_t>(shape.max_samples()));
  accepted_.resize(static_cast<size_t>(shape.max_queries));
  accepted_ids_.reserve(accepted_.size());
  masks_.resize(seqs * static_cast<size_t>(mask_words(shape.num_ids)));
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

SampleRow EngineCore::sample_row(const Sequence& sequence) const {
  const auto& r = static_cast<const ActiveRequest&>(sequence);
  return {.params = &r.params,
          .counts = &r.counts,
          .banned = r.stop.banned(),
          .seed = r.seed,
          .stream = r.stream,
          .position = r.num_tokens()};
}

// Asks what may come next. The state of a constraint follows the tokens that were accepted, so it
// does not matter how often a preempted sequence is computed.
void EngineCore::constrain(SampleRow& row, Sequence& sequence) {
  auto& r = static_cast<ActiveRequest&>(sequence);
  if (r.constraint == nullptr) return;
  const auto words = static_cast<size_t>(mask_words(settings_.plan.shape.num_ids));
  FATHOM_CHECK((num_masks_ + 1) * words <= masks_.size(), "a mask for each sequence of a step");
  const auto mask = std::span(masks_).subspan(num_masks_ * words, words);
  r.only_end_left = false;
  const ConstraintPlace place = r.constraint->next(mask);
  if (place == ConstraintPlace::kFree) return;
  ++num_masks_;
  r.only_end_left = !allows_other_than(mask, settings_.end_ids);
  // What is prescribed goes on while it may, and ends where nothing else is left.
  if (r.params.ignore_eos && !r.only_end_left) forbid(mask, settings_.end_ids);
  row.mask = mask;
  row.most_probable = place == ConstraintPlace::kStructure;
  r.nothing_allowed = !allows_other_than(mask, {});
  // Where nothing but the end is left the answer ends, min_tokens or not.
  if (!allows_other_than(mask, row.banned)) row.banned = {};
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
  propose();
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

void EngineCore::propose() {
  const int64_t most = settings_.plan.shape.max_queries - 1;
  if (settings_.proposer == nullptr || most == 0) return;
  for (Sequence* s : scheduler_.running()) {
    const auto& r = static_cast<const ActiveRequest&>(*s);
    if (s->prefilling || !r.takes_drafts()) continue;
    settings_.proposer->propose(*s, most, s->drafts);
    const auto invalid = [&](int32_t id) { return id < 0 || id >= settings_.plan.shape.num_ids; };
    s->drafts.erase(std::ranges::find_if(s->drafts, invalid), s->drafts.end());
    s->drafts.resize(std::min(s->drafts.size(), static_cast<size_t>(most)));
  }
}

// What an item computes, and with what each of its rows of logits is sampled.
void EngineCore::add_item(const StepItem& item, std::vector<SequenceStep>& steps) {
  auto& s = static_cast<ActiveRequest&>(*item.sequence);
  if (s.started_ns == 0) s.started_ns = clock_.now_ns();
  const int64_t drafts = item.num_drafts();
  SequenceStep step{.cached = item.begin,
                    .pages = s.cache.blocks(),
                    .slot = s.cache.slot(),
                    .logits = item.yields_token ? LogitRows::kLast : LogitRows::kNone};
  const auto known = std::span(s.tokens).subspan(static_cast<size_t>(item.begin),
                                                 static_cast<size_t>(item.count - drafts));
  step.tokens = known;
  if (item.all_logits) {
    step.logits = LogitRows::kAll;
    add_scored_rows(item);
  }
  if (drafts > 0) {
    const size_t begin = drafted_.size();
    drafted_.insert(drafted_.end(), known.begin(), known.end());
    drafted_.insert(drafted_.end(), s.drafts.begin(), s.drafts.begin() + drafts);
    step.tokens = std::span(drafted_).subspan(begin);
    step.logits = LogitRows::kAll;
  }
  steps.push_back(step);
  if (!item.yields_token) return;
  SampleRow row = sample_row(s);
  constrain(row, s);
  for (int64_t i = 0; i <= drafts; ++i, ++row.position)
    rows_.push_back(row);
}

// A row for each token of a prompt that is scored but the one that gives a token.
void EngineCore::add_scored_rows(const StepItem& item) {
  const auto& r = static_cast<const ActiveRequest&>(*item.sequence);
  const int64_t count = item.count - (item.yields_token ? 1 : 0);
  for (int64_t p = item.begin; p < item.begin + count; ++p) {
    const bool wanted = p < r.num_to_score();
    rows_.push_back({.params = &r.scoring,
                     .position = p + 1,
                     .scored = wanted ? r.tokens[static_cast<size_t>(p + 1)] : -1});
  }
}

// What came of them. False: there were logits that are not finite.
bool EngineCore::take_scores(const StepItem& item, std::span<const SampleResult> results) {
  auto& r = static_cast<ActiveRequest&>(*item.sequence);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].finite) return false;
    if (item.begin + static_cast<int64_t>(i) >= r.num_to_score()) break;
    const SampleResult& result = results[i];
    r.listener->prompt_logprobs.push_back(
        {.token = {result.token, result.logprob},
         .rank = result.rank,
         .top = {result.top_logprobs.begin(), result.top_logprobs.end()}});
  }
  return true;
}

Status EngineCore::start(const StepPlan& plan) {
  prefill_.clear();
  decode_.clear();
  rows_.clear();
  drafted_.clear();
  num_masks_ = 0;
  for (const StepItem& item : plan.prefill)
    add_item(item, prefill_);
  for (const StepItem& item : plan.decode)
    add_item(item, decode_);
  return executor_->start({.prefill = prefill_,
                           .decode = decode_,
                           .wants = rows_.empty() ? StepWants::kNothing : StepWants::kTokens,
                           .samples = rows_,
                           .slot_copies = plan.slot_copies});
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

// The tokens that an item's rows gave, up to the first that was not drafted, that ends the request
// or that has no finite logits.
int64_t EngineCore::accept(ActiveRequest& r,
                           const StepItem& item,
                           std::span<const SampleResult> results) {
  accepted_ids_.clear();
  for (size_t i = 0; i < results.size(); ++i) {
    const SampleResult& result = results[i];
    if (!result.finite) break;
    Accepted& a = accepted_[i];
    a.token = result.token;
    a.logprob = result.logprob;
    a.top_logprobs = result.top_logprobs;
    // Banned until min_tokens or to be ignored, and drawn all the same: nothing else was allowed
    // (constrain).
    const bool ends = r.only_end_left || std::ranges::count(r.stop.banned(), result.token) > 0;
    a.outcome =
        ends ? StopOutcome{FinishReason::kStop, r.stop.release(), {}} : r.stop.push(result.token);
    r.counts.add(result.token);
    accepted_ids_.push_back(result.token);
    if (r.constraint != nullptr && !r.constraint->accept(result.token)) refused(r, a);
    const bool more = a.outcome.finish == FinishReason::kNone && i + 1 < results.size() &&
                      result.token == item.sequence->drafts[i];
    if (!more) break;
    a.text.assign(a.outcome.text);  // the next push() takes the memory of the view
    a.outcome.text = a.text;
  }
  return static_cast<int64_t>(accepted_ids_.size());
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
  const int64_t count = accept(r, item, results);
  drafted_tokens_ += drafts;
  if (count == 0) {
    fail(r, item);
    return;
  }
  generated_tokens_ += count;
  accepted_tokens_ += count - 1;
  scheduler_.commit(item, accepted_ids_, accepted_[static_cast<size_t>(count - 1)].outcome.finish);
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
  end_plan();
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
          .numerical_errors = numerical_errors_};
}

}  // namespace fathom
