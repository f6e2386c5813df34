#include "fathom/runtime/forward_session.h"

#include <algorithm>
#include <numeric>

namespace fathom {

ForwardSession::ForwardSession(const Model& model, const SessionOptions& options)
    : options_(options),
      blocks_per_sequence_(model.cache_layout().blocks_for(options.max_tokens)),
      blocks_(static_cast<size_t>(blocks_per_sequence_ * options.sequences)),
      lengths_(static_cast<size_t>(options.sequences), 0),
      steps_(static_cast<size_t>(options.sequences)),
      rows_(static_cast<size_t>(options.sequences)) {
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

Result<std::unique_ptr<ForwardSession>> ForwardSession::create(const Model& model,
                                                               const Compute& compute,
                                                               const SessionOptions& options) {
  const int64_t context = model.config().max_position_embeddings;
  if (options.max_tokens < 1 || options.max_tokens > context) {
    return invalid_argument(str_cat("a sequence of ", options.max_tokens,
                                    " tokens does not fit the model's context of ", context));
  }
  std::unique_ptr<ForwardSession> session(new ForwardSession(model, options));
  const int64_t chunk = std::min(options.chunk, options.max_tokens);
  const StepShape shape{.max_num_seqs = options.sequences,
                        .max_num_batched_tokens = std::max(chunk, options.sequences),
                        .max_model_len = options.max_tokens,
                        .num_ids = model.config().vocab_size,
                        .all_logits = options.prefill_logits == LogitRows::kAll || options.draft,
                        .drafts = options.draft,
                        .num_threads = compute.pool->size(),
                        .kernels = &compute.kernels(),
                        .gpu = compute.device()};
  FATHOM_ASSIGN(const MemoryNeeds memory, step_memory(model, shape));
  FATHOM_ASSIGN(session->executor_,
                Executor::create(model, compute,
                                 {.shape = shape,
                                  .num_blocks = session->blocks_per_sequence_ * options.sequences,
                                  .num_slots = options.sequences,
                                  .memory = memory,
                                  .graphs = options.cuda_graphs,
                                  .pins = options.pins}));
  return session;
}

SequenceStep ForwardSession::step_of(int64_t sequence,
                                     std::span<const int32_t> tokens,
                                     int64_t cached,
                                     LogitRows logits) const {
  return {.tokens = tokens,
          .cached = cached,
          .pages = std::span(blocks_).subspan(static_cast<size_t>(sequence * blocks_per_sequence_),
                                              static_cast<size_t>(blocks_per_sequence_)),
          .slot = static_cast<int32_t>(sequence),
          .logits = logits};
}

Result<StepResults> ForwardSession::run(const Step& step, Phase phase) {
  if (recorder_ != nullptr) recorder_->set_phase(phase);
  return executor_->run(step);
}

Status ForwardSession::check_room(int64_t sequence, int64_t count) const {
  const int64_t length = lengths_[static_cast<size_t>(sequence)];
  if (length + count <= options_.max_tokens) return {};
  return invalid_argument(str_cat("sequence ", sequence, " has ", length, " tokens; ", count,
                                  " more exceed ", options_.max_tokens));
}

Status ForwardSession::prefill(int64_t sequence,
                               std::span<const int32_t> tokens,
                               LogitRows logits,
                               const OnRows& on_rows,
                               const Probe* probe) {
  int64_t& length = lengths_[static_cast<size_t>(sequence)];
  const auto count = static_cast<int64_t>(tokens.size());
  FATHOM_TRY(check_room(sequence, count));
  for (int64_t at = 0; at < count; at += options_.chunk) {
    const int64_t take = std::min(options_.chunk, count - at);
    const bool last = at + take == count;
    const LogitRows rows = logits == LogitRows::kLast && !last ? LogitRows::kNone : logits;
    const SequenceStep step = step_of(
        sequence, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(take)), length, rows);
    const StepWants wants = rows == LogitRows::kNone ? StepWants::kNothing : StepWants::kLogits;
    FATHOM_ASSIGN(
        const StepResults out,
        run({.prefill = std::span(&step, 1), .wants = wants, .probe = probe}, Phase::kPrefill));
    const int64_t first = length;
    length += take;
    if (on_rows) FATHOM_TRY(on_rows(first, out));
  }
  return {};
}

Status ForwardSession::list_decode(std::span<const int32_t> tokens) {
  FATHOM_CHECK(tokens.size() <= steps_.size(), "more tokens than sequences");
  if (tokens.empty()) return invalid_argument("a step of 0 tokens, expected one a sequence");
  for (size_t s = 0; s < tokens.size(); ++s) {
    if (lengths_[s] >= options_.max_tokens) {
      return invalid_argument(
          str_cat("sequence ", s, " is full: ", options_.max_tokens, " tokens"));
    }
    steps_[s] =
        step_of(static_cast<int64_t>(s), tokens.subspan(s, 1), lengths_[s], LogitRows::kLast);
  }
  return {};
}

Result<View> ForwardSession::decode(std::span<const int32_t> tokens) {
  FATHOM_TRY(list_decode(tokens));
  FATHOM_ASSIGN(const StepResults out,
                run({.decode = std::span(steps_).first(tokens.size()), .wants = StepWants::kLogits},
                    Phase::kDecode));
  for (size_t s = 0; s < tokens.size(); ++s)
    ++lengths_[s];
  return out.logits;
}

Status ForwardSession::decode_sampled(std::span<const int32_t> tokens,
                                      const SamplingParams& params,
                                      std::span<int32_t> next) {
  static const TokenCounts none;
  FATHOM_TRY(list_decode(tokens));
  for (size_t s = 0; s < tokens.size(); ++s) {
    rows_[s] = {.params = &params,
                .counts = &none,
                .banned = {},
                .seed = params.seed.value_or(0),
                .stream = s,
                .position = lengths_[s] + 1};
  }
  FATHOM_ASSIGN(const StepResults out, run({.decode = std::span(steps_).first(tokens.size()),
                                            .wants = StepWants::kTokens,
                                            .samples = std::span(rows_).first(tokens.size())},
                                           Phase::kDecode));
  for (size_t s = 0; s < tokens.size(); ++s) {
    if (!out.samples[s].finite) {
      return numerical_error(str_cat("the logits of sequence ", s, " are not finite"));
    }
    next[s] = out.samples[s].token;
    ++lengths_[s];
  }
  return {};
}

Status ForwardSession::pretend_prefix(int64_t length, uint64_t seed) {
  if (length < 0 || length >= options_.max_tokens) {
    return invalid_argument(str_cat("a prefix of ", length, " tokens leaves no room for more in ",
                                    options_.max_tokens));
  }
  FATHOM_TRY(executor_->pretend_rows(seed));
  std::fill(lengths_.begin(), lengths_.end(), length);
  return {};
}

Result<TimedStep> ForwardSession::time_decode(std::span<const int32_t> tokens,
                                              Recorder& recorder,
                                              int repetitions) {
  FATHOM_TRY(list_decode(tokens));
  recorder.set_phase(Phase::kDecode);
  return executor_->time({.decode = std::span(steps_).first(tokens.size())}, recorder, repetitions);
}

Result<TimedStep> ForwardSession::time_prefill(int64_t sequence,
                                               std::span<const int32_t> tokens,
                                               LogitRows logits,
                                               Recorder& recorder,
                                               int repetitions) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > options_.chunk) {
    return invalid_argument(str_cat("a pass takes at most ", options_.chunk, " tokens"));
  }
  FATHOM_TRY(check_room(sequence, count));
  const SequenceStep step = step_of(sequence, tokens, length(sequence), logits);
  recorder.set_phase(Phase::kPrefill);
  return executor_->time({.prefill = std::span(&step, 1)}, recorder, repetitions);
}

Result<StepResults> ForwardSession::draft(std::span<const int32_t> tokens, const View& hidden) {
  const SequenceStep step = step_of(0, tokens, 0, LogitRows::kAll);
  return run({.prefill = std::span(&step, 1),
              .wants = StepWants::kLogits,
              .pass = Step::Pass::kDraft,
              .draft_input = hidden},
             Phase::kDraft);
}

Result<TimedStep> ForwardSession::time_draft(std::span<const int32_t> tokens,
                                             const View& hidden,
                                             Recorder& recorder,
                                             int repetitions) {
  const SequenceStep step = step_of(0, tokens, 0, LogitRows::kAll);
  recorder.set_phase(Phase::kDraft);
  return executor_->time(
      {.prefill = std::span(&step, 1), .pass = Step::Pass::kDraft, .draft_input = hidden}, recorder,
      repetitions);
}

void ForwardSession::reset() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
}

void ForwardSession::set_recorder(Recorder* recorder) {
  recorder_ = recorder;
  executor_->set_recorder(recorder);
}

}  // namespace fathom
