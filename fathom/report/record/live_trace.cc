#include "fathom/report/record/live_trace.h"

#include <algorithm>

#include "fathom/base/str_cat.h"
#include "fathom/os/clock.h"
#include "fathom/report/record/gathered_phases.h"
#include "fathom/report/record/live_drafts.h"
#include "fathom/report/record/live_gpu_trace.h"
#include "fathom/report/record/live_passes.h"

namespace fathom {
namespace {

class Live {
 public:
  Live(const Model& model, const LiveOptions& options)
      : model_(model),
        options_(options),
        drafts_(drafts_after_prompt(model, options)),
        recorder_(options.level, kMostRecordedCalls),
        phases_(model.config().symbols()) {}

  Result<LiveRun> run(const Compute& compute) {
    const auto length = static_cast<int64_t>(options_.prompt.size());
    SessionOptions session;
    session.max_tokens = length + options_.generate * (options_.measure_overhead ? 2 : 1);
    session.chunk = std::min(options_.chunk, length);
    session.sequences = options_.batch;
    session.draft = drafts_;
    session.pins = options_.pins;
    FATHOM_ASSIGN(session_, ForwardSession::create(model_, compute, session));
    session_->set_recorder(&recorder_);
    Status status = warm_up();
    if (status.ok()) status = recorded();
    session_->set_recorder(nullptr);
    FATHOM_TRY(std::move(status));
    out_.phases = phases_.take();
    return std::move(out_);
  }

 private:
  // One pass of each kind, whose calls are thrown away: it touches weights, pages and records.
  Status warm_up() {
    FATHOM_TRY(prompts());
    FATHOM_TRY(session_->decode(next_).status());
    session_->reset();
    recorder_.clear();
    return {};
  }

  Status recorded() {
    recording_ = true;
    FATHOM_TRY(prompts());
    for (int64_t i = 0; i < options_.generate; ++i) {
      // Turn and turn about: what a step finds in caches depends on what ran before it.
      if (options_.measure_overhead && i % 2 == 0) FATHOM_TRY(unrecorded_step());
      FATHOM_ASSIGN(const TraceStep step, decode_step());
      if (options_.measure_overhead) out_.recorded_ns.push_back(duration_ns(step));
      FATHOM_TRY(take(kDecodePhase, step));
      if (options_.measure_overhead && i % 2 == 1) FATHOM_TRY(unrecorded_step());
    }
    return {};
  }

  static double duration_ns(const TraceStep& step) {
    return static_cast<double>(step.end_ns - step.start_ns);
  }

  // One token for each sequence; the next ones are the most likely.
  Result<TraceStep> decode_step() {
    out_.tokens.push_back(next_.front());
    TraceStep step{.start_ns = monotonic_ns(), .tokens = options_.batch};
    FATHOM_ASSIGN(const View logits, session_->decode(next_));
    step.end_ns = monotonic_ns();
    for (int64_t s = 0; s < options_.batch; ++s) {
      FATHOM_ASSIGN(next_[static_cast<size_t>(s)], best_token(logits, s));
    }
    return step;
  }

  Status unrecorded_step() {
    session_->set_recorder(nullptr);
    Result<TraceStep> step = decode_step();
    session_->set_recorder(&recorder_);
    if (!step.ok()) return std::move(step).status();
    out_.unrecorded_ns.push_back(duration_ns(*step));
    return {};
  }

  Status prompts() {
    next_.assign(static_cast<size_t>(options_.batch), 0);
    for (int64_t s = 0; s < options_.batch; ++s)
      FATHOM_TRY(prompt(s));
    return {};
  }

  // One sequence's prompt, a pass at a time, and the draft head behind it for the first sequence.
  Status prompt(int64_t sequence) {
    for (const PromptPass& part : prompt_passes(options_)) {
      const int64_t start = monotonic_ns();
      const auto on_rows = [&](int64_t, const StepResults& pass) -> Status {
        const int64_t end = monotonic_ns();
        FATHOM_TRY(take(part.phase, {start, end, static_cast<int64_t>(part.tokens.size())}));
        if (!part.last) return {};
        FATHOM_ASSIGN(next_[static_cast<size_t>(sequence)], best_token(pass.logits, 0));
        return sequence == 0 && drafts_ ? draft(pass.hidden) : Status{};
      };
      const LogitRows logits = part.last ? LogitRows::kLast : LogitRows::kNone;
      FATHOM_TRY(session_->prefill(sequence, part.tokens, logits, on_rows));
    }
    return {};
  }

  Status draft(const View& hidden) {
    const std::vector<int32_t> following = tokens_after_prompt(options_, next_.front());
    const int64_t start = monotonic_ns();
    FATHOM_TRY(session_->draft(following, hidden).status());
    return take(kDraftPhase, {start, monotonic_ns(), static_cast<int64_t>(following.size())});
  }

  // The calls of the pass that just ended, as a step of its phase.
  Status take(const PhaseName& phase, const TraceStep& step) {
    if (!recording_) {
      recorder_.clear();
      return {};
    }
    if (out_.begin_ns == 0) out_.begin_ns = step.start_ns;
    Status added = phases_.add(phase.name, phase.title, recorder_, recorder_.records(), step);
    recorder_.clear();
    return added;
  }

  const Model& model_;
  const LiveOptions& options_;
  const bool drafts_;
  Recorder recorder_;
  GatheredPhases phases_;
  std::unique_ptr<ForwardSession> session_;
  std::vector<int32_t> next_;  // of each sequence
  LiveRun out_;
  bool recording_ = false;
};

}  // namespace

Result<LiveRun> run_live(const Model& model, const Compute& compute, const LiveOptions& options) {
  if (options.prompt.empty()) {
    return invalid_argument(
        "the prompt has no tokens\nhint: give text with -p, or --prompt-tokens N");
  }
  if (options.speculative != Speculative::kOff) return run_live_drafts(model, compute, options);
  if (compute.gpu == nullptr) return Live(model, options).run(compute);
  if (options.level != RecordLevel::kTimed || options.measure_overhead) {
    return unsupported("a run on a GPU is recorded with times alone");
  }
  return run_live_on_gpu(model, compute, options);
}

}  // namespace fathom
