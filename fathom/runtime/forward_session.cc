#include "fathom/runtime/forward_session.h"

#include <algorithm>
#include <numeric>

#include "fathom/base/checked_math.h"

namespace fathom {

ForwardSession::ForwardSession(const Model& model, const SessionOptions& options)
    : model_(model),
      options_(options),
      lengths_(static_cast<size_t>(options.sequences), 0),
      batch_(model.kv_layout().page_size) {}

Result<std::unique_ptr<ForwardSession>> ForwardSession::create(const Model& model,
                                                               ThreadPool& pool,
                                                               const SessionOptions& options) {
  const int64_t context = model.config().max_position_embeddings;
  if (options.max_tokens < 1 || options.max_tokens > context) {
    return invalid_argument(str_cat("a sequence of ", options.max_tokens,
                                    " tokens does not fit the model's context of ", context));
  }
  std::unique_ptr<ForwardSession> session(new ForwardSession(model, options));
  FATHOM_TRY(session->allocate(pool));
  return session;
}

Status ForwardSession::allocate(ThreadPool& pool) {
  const KvLayout layout = model_.kv_layout();
  pages_per_sequence_ = ceil_div(options_.max_tokens, layout.page_size);
  const int64_t num_pages = pages_per_sequence_ * options_.sequences;
  FATHOM_ASSIGN(kv_memory_, Buffer::allocate(DeviceKind::kCpu, num_pages * layout.bytes_per_page(),
                                             "the KV cache"));
  const int64_t layer_bytes =
      num_pages * layout.page_size * layout.width * element_bytes(layout.format);
  for (int64_t l = 0; l < layout.num_layers; ++l) {
    kv_.push_back(make_view(kv_memory_.data() + l * layer_bytes,
                            {num_pages, layout.page_size, layout.width}, layout.format,
                            "pages,page_size,Lkv+Dr"));
  }
  pages_.resize(static_cast<size_t>(num_pages));
  std::iota(pages_.begin(), pages_.end(), 0);
  steps_.resize(static_cast<size_t>(options_.sequences));

  const int64_t chunk = std::min(options_.chunk, options_.max_tokens);
  BatchShape prompt;
  prompt.prefill = {.count = 1, .new_tokens = chunk, .cached = options_.max_tokens - chunk};
  prompt.logits = options_.prefill_logits;
  BatchShape tokens;
  tokens.decode = {.count = options_.sequences, .new_tokens = 1, .cached = options_.max_tokens - 1};
  FATHOM_ASSIGN(MemoryNeeds needs, dry_run(model_, prompt, pool.size()));
  FATHOM_ASSIGN(const MemoryNeeds decode, dry_run(model_, tokens, pool.size()));
  needs.activation_bytes = std::max(needs.activation_bytes, decode.activation_bytes);
  needs.scratch_bytes = std::max(needs.scratch_bytes, decode.scratch_bytes);
  if (options_.draft) {
    prompt.logits = LogitRows::kAll;
    FATHOM_ASSIGN(const MemoryNeeds draft,
                  dry_run(model_, prompt, pool.size(), nullptr, DryPass::kDraft));
    // The hidden rows of the main pass are still needed while the draft head runs.
    needs.activation_bytes += draft.activation_bytes;
    needs.scratch_bytes = std::max(needs.scratch_bytes, draft.scratch_bytes);
  }
  FATHOM_ASSIGN(Buffer activations, Buffer::allocate(DeviceKind::kCpu, needs.activation_bytes,
                                                     "the activations of a step"));
  FATHOM_ASSIGN(Buffer scratch, Buffer::allocate(DeviceKind::kCpu, needs.scratch_bytes,
                                                 "the workspaces of kernels"));
  activations_ = Arena(std::move(activations));
  scratch_ = Arena(std::move(scratch));
  exec_.pool = &pool;
  exec_.num_threads = pool.size();
  exec_.activations = &activations_;
  exec_.scratch = &scratch_;
  return {};
}

std::span<const int32_t> ForwardSession::pages_of(int64_t sequence) const {
  return std::span(pages_).subspan(static_cast<size_t>(sequence * pages_per_sequence_),
                                   static_cast<size_t>(pages_per_sequence_));
}

Result<ForwardOut> ForwardSession::forward(std::span<const SequenceStep> prefill,
                                           std::span<const SequenceStep> decode,
                                           const Probe* probe) {
  activations_.reset();
  scratch_.reset();
  FATHOM_ASSIGN(Batch batch, batch_.build(prefill, decode));
  batch.kv = kv_;
  batch.probe = probe;
  if (exec_.recorder != nullptr) {
    exec_.recorder->set_phase(prefill.empty() ? Phase::kDecode : Phase::kPrefill);
  }
  ForwardOut out;
  FATHOM_TRY(model_.forward(exec_, batch, out));
  return out;
}

Status ForwardSession::prefill(int64_t sequence,
                               std::span<const int32_t> tokens,
                               LogitRows logits,
                               const OnRows& on_rows,
                               const Probe* probe) {
  int64_t& length = lengths_[static_cast<size_t>(sequence)];
  const auto count = static_cast<int64_t>(tokens.size());
  if (length + count > options_.max_tokens) {
    return invalid_argument(str_cat("sequence ", sequence, " has ", length, " tokens; ", count,
                                    " more exceed ", options_.max_tokens));
  }
  for (int64_t at = 0; at < count; at += options_.chunk) {
    const int64_t take = std::min(options_.chunk, count - at);
    const bool last = at + take == count;
    const SequenceStep step{
        .tokens = tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(take)),
        .cached = length,
        .pages = pages_of(sequence),
        .logits = logits == LogitRows::kLast && !last ? LogitRows::kNone : logits};
    FATHOM_ASSIGN(const ForwardOut out, forward(std::span(&step, 1), {}, probe));
    const int64_t first = length;
    length += take;
    if (on_rows) FATHOM_TRY(on_rows(first, out));
  }
  return {};
}

Result<View> ForwardSession::decode(std::span<const int32_t> tokens) {
  FATHOM_CHECK(tokens.size() <= steps_.size(), "more tokens than sequences");
  for (size_t s = 0; s < tokens.size(); ++s) {
    if (lengths_[s] >= options_.max_tokens) {
      return invalid_argument(
          str_cat("sequence ", s, " is full: ", options_.max_tokens, " tokens"));
    }
    steps_[s] = {.tokens = tokens.subspan(s, 1),
                 .cached = lengths_[s],
                 .pages = pages_of(static_cast<int64_t>(s)),
                 .logits = LogitRows::kLast};
  }
  FATHOM_ASSIGN(const ForwardOut out, forward({}, std::span(steps_).first(tokens.size()), nullptr));
  for (size_t s = 0; s < tokens.size(); ++s)
    ++lengths_[s];
  return out.logits;
}

Result<ForwardOut> ForwardSession::draft(std::span<const int32_t> tokens, const View& hidden) {
  // Continues in the arena of the pass that made `hidden`.
  const SequenceStep step{
      .tokens = tokens, .cached = 0, .pages = pages_of(0), .logits = LogitRows::kAll};
  FATHOM_ASSIGN(Batch batch, batch_.build(std::span(&step, 1), {}));
  batch.kv = kv_;
  if (exec_.recorder != nullptr) exec_.recorder->set_phase(Phase::kDraft);
  ForwardOut out;
  FATHOM_TRY(model_.draft(exec_, batch, hidden, out));
  return out;
}

void ForwardSession::reset() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
}

int64_t ForwardSession::memory_bytes() const {
  return kv_memory_.size() + activations_.capacity() + scratch_.capacity();
}

}  // namespace fathom
