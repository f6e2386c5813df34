#include "fathom/report/record/live_drafts.h"

#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/os/clock.h"
#include "fathom/report/record/gathered_phases.h"
#include "fathom/report/record/live_passes.h"
#include "fathom/runtime/engine.h"

namespace fathom {
namespace {

class LiveDrafts {
 public:
  LiveDrafts(const Model& model, const LiveOptions& options)
      : options_(options),
        proposer_(make_proposer(options.speculative, options.drafts)),
        recorder_(options.level, kMostRecordedCalls),
        phases_(model.config().symbols()) {}

  Result<LiveRun> run(const Model& model, const Compute& compute) {
    FATHOM_TRY(open(model, compute));
    FATHOM_TRY(record(1));  // unrecorded: touches weights, caches and threads
    out_ = {};
    recorded_ = true;
    core_->set_recorder(&recorder_);
    Status status = record(options_.generate);
    core_->set_recorder(nullptr);
    FATHOM_TRY(std::move(status));
    out_.phases = phases_.take();
    return std::move(out_);
  }

 private:
  // Tokens of an answer at most: each step may take all of its drafts. The first sequences decode
  // while the prompts of others are computed.
  int64_t most_tokens(int64_t steps) const {
    const int64_t prompts = options_.batch * std::ssize(options_.prompt);
    const int64_t beside = options_.batch > 1 ? ceil_div(prompts, options_.chunk) : 0;
    return 1 + (steps + beside) * (1 + options_.drafts.drafts());
  }

  Status open(const Model& model, const Compute& compute) {
    const auto prompt = static_cast<int64_t>(options_.prompt.size());
    const int64_t context = model.config().max_position_embeddings;
    max_model_len_ = std::min(context, prompt + most_tokens(options_.generate));
    CoreSettings settings;
    FATHOM_ASSIGN(
        settings.plan,
        plan_memory(model, {.max_model_len = max_model_len_,
                            .max_num_seqs = options_.batch,
                            .max_num_batched_tokens = std::max(options_.chunk, options_.batch),
                            .num_ids = model.config().vocab_size,
                            .max_queries = most_queries(options_.speculative, options_.drafts),
                            .drafts = proposer_->follows(),
                            .trees = options_.drafts.is_tree(),
                            .num_threads = compute.pool->size(),
                            .kernels = &compute.kernels()}));
    settings.scheduler.page_reserve = 0;  // the pool holds every request, and no other comes
    settings.prefix_cache = false;        // every sequence has the same prompt
    settings.model_fingerprint = "trace";
    settings.proposer = proposer_.get();
    settings.adaptive_drafts = false;
    settings.pins = options_.pins;
    FATHOM_ASSIGN(core_, EngineCore::create(std::move(settings), model, compute, nullptr, clock_));
    return {};
  }

  // The prompts, and so many steps behind the first token of all.
  Status record(int64_t steps) {
    const auto prompt = static_cast<int64_t>(options_.prompt.size());
    prompts_begin_ = core_->stats().prompt_tokens;
    int64_t started = 0;
    std::vector<RequestId> ids;
    for (int64_t s = 0; s < options_.batch; ++s) {
      Request request;
      request.prompt = options_.prompt;
      request.sampling = greedy_sampling();
      request.sampling.max_tokens = std::min(most_tokens(steps), max_model_len_ - prompt);
      request.on_token = [this, &started, s](const TokenEvent& event) {
        if (event.finish == FinishReason::kNumericalError) finite_ = false;
        started += event.index == 0 ? 1 : 0;
        if (s == 0 && event.token >= 0) out_.tokens.push_back(event.token);
      };
      FATHOM_ASSIGN(const RequestId id, core_->submit(std::move(request)));
      ids.push_back(id);
    }
    while (finite_ && started < options_.batch && !core_->idle())
      FATHOM_TRY(step());
    for (int64_t i = 0; finite_ && i < steps && !core_->idle(); ++i)
      FATHOM_TRY(step());
    for (const RequestId id : ids)
      core_->cancel(id);
    return finite_ ? Status{} : numerical_error("the logits of a step are not finite");
  }

  Status step() {
    const int64_t computed = core_->stats().prompt_tokens - prompts_begin_;
    recorder_.clear();
    FATHOM_TRY(core_->step());
    if (!recorded_) return {};
    // A phase begins where the executor went on to another pass.
    const std::vector<OpRecord> records = recorder_.records();
    bool behind_target = false;
    for (size_t begin = 0; begin < records.size();) {
      const Phase phase = records[begin].phase;
      const auto other =
          std::find_if(records.begin() + static_cast<std::ptrdiff_t>(begin), records.end(),
                       [&](const OpRecord& record) { return record.phase != phase; });
      const auto end = static_cast<size_t>(other - records.begin());
      behind_target = behind_target || phase != Phase::kDraft;
      FATHOM_TRY(add(name_of(phase, behind_target, computed),
                     std::span(records).subspan(begin, end - begin)));
      begin = end;
    }
    return {};
  }

  PhaseName name_of(Phase phase, bool behind_target, int64_t computed) const {
    switch (phase) {
      case Phase::kPrefill:
        return computed == 0 ? kPrefillPhase : kChunkedPhase;
      case Phase::kDraft:
        return behind_target ? kDraftPhase : kDraftChainPhase;
      case Phase::kVerify:
        return kVerifyPhase;
      default:
        return kDecodePhase;
    }
  }

  // The first op of every pass looks up the embeddings of all of its tokens.
  Status add(const PhaseName& phase, std::span<const OpRecord> records) {
    const TraceStep step{.start_ns = records.front().start_ns,
                         .end_ns = records.back().end_ns,
                         .tokens = records.front().operands.front().dims.front()};
    if (out_.begin_ns == 0) out_.begin_ns = step.start_ns;
    return phases_.add(phase.name, phase.title, recorder_, records, step);
  }

  const LiveOptions& options_;
  const MonotonicClock clock_;
  std::unique_ptr<Proposer> proposer_;
  std::unique_ptr<EngineCore> core_;
  Recorder recorder_;
  GatheredPhases phases_;
  LiveRun out_;
  int64_t max_model_len_ = 0;
  int64_t prompts_begin_ = 0;  // prompt tokens computed before
  bool recorded_ = false;
  bool finite_ = true;
};

}  // namespace

Result<LiveRun> run_live_drafts(const Model& model,
                                const Compute& compute,
                                const LiveOptions& options) {
  FATHOM_TRY(check_speculative(options.speculative, options.drafts, model));
  if (compute.gpu != nullptr) {
    return unsupported(
        "--speculative: steps with drafts are recorded on a CPU alone\nhint: --dry --device h200 "
        "shows what a GPU runs");
  }
  return LiveDrafts(model, options).run(model, compute);
}

}  // namespace fathom
