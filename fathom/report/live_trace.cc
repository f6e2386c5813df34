#include "fathom/report/live_trace.h"

#include <algorithm>

#include "fathom/base/str_cat.h"
#include "fathom/os/clock.h"

namespace fathom {
namespace {

// The first of the largest, as argmax has it.
int32_t best_token(const View& logits, int64_t row) {
  const float* values = logits.row<float>(row);
  return static_cast<int32_t>(std::max_element(values, values + logits.dim(1)) - values);
}

class Live {
 public:
  Live(const Model& model, const LiveOptions& options)
      : model_(model), options_(options), recorder_(options.level, kCapacity) {}

  Result<LiveRun> run(ThreadPool& pool) {
    const auto length = static_cast<int64_t>(options_.prompt.size());
    SessionOptions session;
    session.max_tokens = length + options_.generate * (options_.measure_overhead ? 2 : 1);
    session.chunk = std::min(options_.chunk, length);
    session.sequences = options_.batch;
    session.draft = drafts();
    FATHOM_ASSIGN(session_, ForwardSession::create(model_, pool, session));
    session_->set_pins(options_.pins);
    session_->set_recorder(&recorder_);
    Status status = warm_up();
    if (status.ok()) status = recorded();
    session_->set_recorder(nullptr);
    FATHOM_TRY(std::move(status));
    for (TracePhase& phase : out_.phases)
      finish(phase);
    return std::move(out_);
  }

 private:
  static constexpr int64_t kCapacity = 1 << 15;  // calls of one pass

  bool drafts() const {
    return model_.has_draft() && static_cast<int64_t>(options_.prompt.size()) <= options_.chunk;
  }

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
      FATHOM_TRY(take("decode", "Decode", step));
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
    for (int64_t s = 0; s < options_.batch; ++s)
      next_[static_cast<size_t>(s)] = best_token(logits, s);
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
    const std::span<const int32_t> tokens(options_.prompt);
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(options_.chunk)) {
      const auto part = tokens.subspan(at).first(
          std::min(tokens.size() - at, static_cast<size_t>(options_.chunk)));
      const bool last = at + part.size() == tokens.size();
      const char* name = at == 0 ? "prefill" : "prefill_chunked";
      const char* what = at == 0 ? "Prefill" : "Prefill after a cached prefix";
      const int64_t start = monotonic_ns();
      const auto on_rows = [&](int64_t, const ForwardOut& pass) -> Status {
        const int64_t end = monotonic_ns();
        FATHOM_TRY(take(name, what, {start, end, static_cast<int64_t>(part.size())}));
        if (!last) return {};
        next_[static_cast<size_t>(sequence)] = best_token(pass.logits, 0);
        return sequence == 0 && drafts() ? draft(pass.hidden) : Status{};
      };
      const LogitRows logits = last ? LogitRows::kLast : LogitRows::kNone;
      FATHOM_TRY(session_->prefill(sequence, part, logits, on_rows));
    }
    return {};
  }

  Status draft(const View& hidden) {
    std::vector<int32_t> following(options_.prompt.begin() + 1, options_.prompt.end());
    following.push_back(next_.front());
    const int64_t start = monotonic_ns();
    FATHOM_TRY(session_->draft(following, hidden).status());
    return take("draft", "Draft head, one token ahead",
                {start, monotonic_ns(), static_cast<int64_t>(following.size())});
  }

  // The calls of the pass that just ended, as a step of its phase.
  Status take(const char* name, const char* what, TraceStep step) {
    if (!recording_) {
      recorder_.clear();
      return {};
    }
    if (recorder_.dropped() > 0) {
      return internal_error(str_cat(std::string_view(name), ": ", recorder_.dropped(), " of ",
                                    recorder_.total(), " calls did not fit the recorder"));
    }
    FATHOM_ASSIGN(TracePhase pass, make_phase(name, what, recorder_.records(),
                                              recorder_.statistics(), model_.config().symbols()));
    recorder_.clear();
    if (out_.begin_ns == 0) out_.begin_ns = step.start_ns;
    auto phase = std::find_if(out_.phases.begin(), out_.phases.end(),
                              [&](const TracePhase& p) { return p.name == name; });
    if (phase == out_.phases.end()) {
      out_.phases.push_back(
          {.name = name, .title = what, .ops = {}, .steps = {}, .step_sizes = {}});
      phase = out_.phases.end() - 1;
    }
    for (TraceOp& op : pass.ops) {
      op.step = static_cast<int>(phase->steps.size());
      phase->ops.push_back(std::move(op));
    }
    phase->steps.push_back(step);
    for (const auto& [symbol, sizes] : pass.step_sizes) {
      auto& known = phase->step_sizes[symbol];
      known.insert(known.end(), sizes.begin(), sizes.end());
    }
    return {};
  }

  void finish(TracePhase& phase) {
    const auto steps = static_cast<int64_t>(phase.steps.size());
    str_append(phase.title, str_cat(": ", steps, steps == 1 ? " step, " : " steps, ",
                                    phase.steps.front().tokens, " tokens in the first"));
    for (auto& entry : phase.step_sizes) {
      auto& sizes = entry.second;
      std::sort(sizes.begin(), sizes.end());
      sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    }
  }

  const Model& model_;
  const LiveOptions& options_;
  Recorder recorder_;
  std::unique_ptr<ForwardSession> session_;
  std::vector<int32_t> next_;  // of each sequence
  LiveRun out_;
  bool recording_ = false;
};

}  // namespace

Result<LiveRun> run_live(const Model& model, ThreadPool& pool, const LiveOptions& options) {
  if (options.prompt.empty()) {
    return invalid_argument("the prompt has no tokens; give text with -p, or --prompt-tokens N");
  }
  return Live(model, options).run(pool);
}

}  // namespace fathom
