#include "fathom/report/record/live_gpu_trace.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/check.h"
#include "fathom/report/record/gathered_phases.h"
#include "fathom/report/record/live_passes.h"

namespace fathom {
namespace {

int64_t whole_ns(double us) {
  return std::llround(us * 1e3);
}

class GpuLive {
 public:
  GpuLive(const Model& model, const LiveOptions& options)
      : options_(options),
        drafts_(drafts_after_prompt(model, options)),
        recorder_(RecordLevel::kTimed, kMostRecordedCalls),
        phases_(model.config().symbols()),
        next_(static_cast<size_t>(options.batch), 0) {}

  Result<LiveRun> run(const Model& model, const Compute& compute) {
    const auto length = static_cast<int64_t>(options_.prompt.size());
    SessionOptions session;
    session.max_tokens = length + options_.generate;
    session.chunk = std::min(options_.chunk, length);
    session.sequences = options_.batch;
    session.draft = drafts_;
    session.pins = options_.pins;
    FATHOM_ASSIGN(session_, ForwardSession::create(model, compute, session));
    for (int64_t s = 0; s < options_.batch; ++s)
      FATHOM_TRY(prompt(s));
    for (int64_t i = 0; i < options_.generate; ++i)
      FATHOM_TRY(decode());
    out_.phases = phases_.take();
    return std::move(out_);
  }

 private:
  // One sequence's prompt, a pass at a time, and the draft head behind it for the first sequence.
  Status prompt(int64_t sequence) {
    for (const PromptPass& pass : prompt_passes(options_)) {
      const LogitRows logits = pass.last ? LogitRows::kLast : LogitRows::kNone;
      recorder_.clear();
      FATHOM_ASSIGN(const TimedStep timed, session_->time_prefill(sequence, pass.tokens, logits,
                                                                  recorder_, options_.repetitions));
      FATHOM_TRY(take(pass.phase, timed, static_cast<int64_t>(pass.tokens.size())));
      const auto on_rows = [&](int64_t, const StepResults& out) -> Status {
        if (!pass.last) return {};
        FATHOM_ASSIGN(next_[static_cast<size_t>(sequence)], best_token(out.logits, 0));
        return sequence == 0 && drafts_ ? draft(out.hidden) : Status{};
      };
      FATHOM_TRY(session_->prefill(sequence, pass.tokens, logits, on_rows));
    }
    return {};
  }

  Status draft(const View& hidden) {
    const std::vector<int32_t> following = tokens_after_prompt(options_, next_.front());
    recorder_.clear();
    FATHOM_ASSIGN(const TimedStep timed,
                  session_->time_draft(following, hidden, recorder_, options_.repetitions));
    return take(kDraftPhase, timed, static_cast<int64_t>(following.size()));
  }

  // One token for each sequence; the next ones are the most likely.
  Status decode() {
    out_.tokens.push_back(next_.front());
    recorder_.clear();
    FATHOM_ASSIGN(const TimedStep timed,
                  session_->time_decode(next_, recorder_, options_.repetitions));
    FATHOM_TRY(take(kDecodePhase, timed, options_.batch));
    std::vector<int32_t> after(next_.size());
    FATHOM_TRY(session_->decode_sampled(next_, greedy_sampling(), after));
    next_ = std::move(after);
    return {};
  }

  Status take(const PhaseName& phase, const TimedStep& timed, int64_t tokens) {
    std::vector<OpRecord> records = recorder_.records();
    const int64_t ops_end = lay_in_turn(records, timed.op_us, clock_ns_);
    TraceStep step{.start_ns = clock_ns_, .tokens = tokens};
    step.graph_ns = whole_ns(timed.step_us);
    step.one_stream_ns = whole_ns(timed.one_stream_us);
    step.end_ns = std::max(ops_end, step.start_ns + step.graph_ns);
    clock_ns_ = step.end_ns;
    return phases_.add(phase.name, phase.title, recorder_, records, step);
  }

  const LiveOptions& options_;
  const bool drafts_;
  Recorder recorder_;
  GatheredPhases phases_;
  std::unique_ptr<ForwardSession> session_;
  std::vector<int32_t> next_;  // of each sequence
  LiveRun out_;
  int64_t clock_ns_ = 0;  // where the next step begins
};

}  // namespace

int64_t lay_in_turn(std::span<OpRecord> records, std::span<const double> us, int64_t start_ns) {
  FATHOM_CHECK(records.size() == us.size(), "a time for each record");
  double at_us = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].start_ns = start_ns + whole_ns(at_us);
    at_us += us[i];
    records[i].end_ns = start_ns + whole_ns(at_us);
  }
  return start_ns + whole_ns(at_us);
}

Result<LiveRun> run_live_on_gpu(const Model& model,
                                const Compute& compute,
                                const LiveOptions& options) {
  return GpuLive(model, options).run(model, compute);
}

}  // namespace fathom
