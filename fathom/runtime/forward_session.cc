#include "fathom/runtime/forward_session.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "fathom/base/checked_math.h"
#include "fathom/base/rng.h"
#include "fathom/device/upload.h"
#include "fathom/runtime/step.h"
#include "fathom/runtime/step_fault.h"

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
  const DeviceKind device = options_.gpu == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda;
  FATHOM_CHECK(model_.options().device == device, "the model lies where the session runs");
  FATHOM_ASSIGN(kv_memory_,
                Buffer::allocate(device, num_pages * layout.bytes_per_page(), "the KV cache"));
  const int64_t layer_bytes =
      num_pages * layout.page_size * layout.width * element_bytes(layout.format);
  for (int64_t l = 0; l < layout.num_layers; ++l) {
    kv_.push_back(make_view(kv_memory_.data() + l * layer_bytes,
                            {num_pages, layout.page_size, layout.width}, layout.format,
                            "pages,page_size,Lkv+Dr"));
    kv_.back().on_device = kv_memory_.on_device();
  }
  pages_.resize(static_cast<size_t>(num_pages));
  std::iota(pages_.begin(), pages_.end(), 0);
  steps_.resize(static_cast<size_t>(options_.sequences));

  FATHOM_ASSIGN(const MemoryNeeds needs, memory_needs(pool.size()));
  FATHOM_ASSIGN(Buffer activations,
                Buffer::allocate(device, needs.activation_bytes, "the activations of a step"));
  FATHOM_ASSIGN(Buffer scratch,
                Buffer::allocate(device, needs.scratch_bytes, "the workspaces of kernels"));
  activations_ = Arena(std::move(activations));
  scratch_ = Arena(std::move(scratch));
  exec_.pool = &pool;
  exec_.num_threads = pool.size();
  exec_.activations = &activations_;
  exec_.scratch = &scratch_;
  return options_.gpu == nullptr ? Status{} : create_gpu_runner();
}

Result<MemoryNeeds> ForwardSession::memory_needs(int num_threads) const {
  const DeviceInfo* gpu = options_.gpu == nullptr ? nullptr : &options_.gpu->info();
  const int64_t chunk = std::min(options_.chunk, options_.max_tokens);
  BatchShape prompt;
  prompt.prefill = {.count = 1, .new_tokens = chunk, .cached = options_.max_tokens - chunk};
  prompt.logits = options_.prefill_logits;
  MemoryNeeds needs;
  if (gpu == nullptr) {
    BatchShape tokens;
    tokens.decode = {
        .count = options_.sequences, .new_tokens = 1, .cached = options_.max_tokens - 1};
    FATHOM_ASSIGN(needs, dry_run(model_, prompt, num_threads));
    FATHOM_ASSIGN(const MemoryNeeds decode, dry_run(model_, tokens, num_threads));
    needs.activation_bytes = std::max(needs.activation_bytes, decode.activation_bytes);
    needs.scratch_bytes = std::max(needs.scratch_bytes, decode.scratch_bytes);
  } else {
    FATHOM_ASSIGN(
        needs, step_memory(model_, {.max_num_seqs = options_.sequences,
                                    .max_num_batched_tokens = std::max(chunk, options_.sequences),
                                    .max_model_len = options_.max_tokens,
                                    .num_ids = model_.config().vocab_size,
                                    .num_threads = num_threads,
                                    .gpu = gpu}));
    // Logits of every token of a chunk, and their largest ones.
    FATHOM_ASSIGN(const MemoryNeeds pass,
                  dry_run(model_, prompt, num_threads, nullptr, DryPass::kForward, gpu));
    needs.activation_bytes =
        std::max(needs.activation_bytes, pass.activation_bytes + 8 * chunk + 64);
    needs.scratch_bytes = std::max(needs.scratch_bytes, 2 * pass.scratch_bytes);
  }
  if (options_.draft) {
    prompt.logits = LogitRows::kAll;
    FATHOM_ASSIGN(const MemoryNeeds draft,
                  dry_run(model_, prompt, num_threads, nullptr, DryPass::kDraft, gpu));
    // The hidden rows of the main pass are still needed while the draft head runs.
    needs.activation_bytes += draft.activation_bytes;
    needs.scratch_bytes = std::max(needs.scratch_bytes, draft.scratch_bytes);
  }
  return needs;
}

Status ForwardSession::create_gpu_runner() {
  exec_.backend = Backend::kCuda;
  exec_.stream = &options_.gpu->stream();
  exec_.side = &options_.gpu->side();
  exec_.device = &options_.gpu->info();
  const int64_t chunk = std::min(options_.chunk, options_.max_tokens);
  const bool all = options_.prefill_logits == LogitRows::kAll || options_.draft;
  FATHOM_ASSIGN(gpu_,
                GpuRunner::create(model_, kv_, exec_,
                                  {.max_tokens = chunk,
                                   .max_requests = options_.sequences,
                                   .max_pages = pages_per_sequence_,
                                   .max_logits = std::max(all ? chunk : 1, options_.sequences),
                                   .num_ids = model_.config().vocab_size,
                                   .graphs = options_.cuda_graphs}));
  return {};
}

std::span<const int32_t> ForwardSession::pages_of(int64_t sequence) const {
  return std::span(pages_).subspan(static_cast<size_t>(sequence * pages_per_sequence_),
                                   static_cast<size_t>(pages_per_sequence_));
}

Result<ForwardOut> ForwardSession::forward(std::span<const SequenceStep> prefill,
                                           std::span<const SequenceStep> decode,
                                           const Probe* probe) {
  if (gpu_ != nullptr) {
    Result<ForwardOut> out = forward_on_gpu(prefill, decode, probe);
    if (!out.ok()) return step_fault(std::move(out).status(), exec_.pins);
    return out;
  }
  activations_.reset();
  scratch_.reset();
  FATHOM_ASSIGN(Batch batch, batch_.build(prefill, decode));
  batch.kv = kv_;
  batch.probe = probe;
  if (exec_.recorder != nullptr) {
    exec_.recorder->set_phase(prefill.empty() ? Phase::kDecode : Phase::kPrefill);
  }
  ForwardOut out;
  FATHOM_TRY(step_fault(model_.forward(exec_, batch, out), exec_.pins));
  return out;
}

Result<ForwardOut> ForwardSession::forward_on_gpu(std::span<const SequenceStep> prefill,
                                                  std::span<const SequenceStep> decode,
                                                  const Probe* probe) {
  ForwardOut out;
  FATHOM_TRY(gpu_->start(prefill, decode, out, probe));
  if (out.logits.dim(0) == 0) {
    FATHOM_TRY(gpu_->finish());
    return out;
  }
  FATHOM_ASSIGN(out.logits, gpu_->finish_logits());
  if (prefill.empty()) out.logits = slice_rows(out.logits, 0, static_cast<int64_t>(decode.size()));
  return out;
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

Status ForwardSession::list_decode(std::span<const int32_t> tokens) {
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
  return {};
}

Result<View> ForwardSession::decode(std::span<const int32_t> tokens) {
  FATHOM_TRY(list_decode(tokens));
  FATHOM_ASSIGN(const ForwardOut out, forward({}, std::span(steps_).first(tokens.size()), nullptr));
  for (size_t s = 0; s < tokens.size(); ++s)
    ++lengths_[s];
  return out.logits;
}

Status ForwardSession::decode_greedy(std::span<const int32_t> tokens, std::span<int32_t> next) {
  if (gpu_ == nullptr) {
    FATHOM_ASSIGN(const View logits, decode(tokens));
    for (size_t s = 0; s < tokens.size(); ++s) {
      const float* row = logits.row<float>(static_cast<int64_t>(s));
      next[s] = static_cast<int32_t>(std::max_element(row, row + logits.dim(1)) - row);
    }
    return {};
  }
  FATHOM_TRY(list_decode(tokens));
  ForwardOut out;
  FATHOM_TRY(gpu_->start({}, std::span(steps_).first(tokens.size()), out));
  FATHOM_ASSIGN(const std::span<const GreedyChoice> choices, gpu_->finish_choices());
  for (size_t s = 0; s < tokens.size(); ++s) {
    next[s] = choices[s].id;
    ++lengths_[s];
  }
  return {};
}

Status ForwardSession::pretend_prefix(int64_t length, uint64_t seed) {
  if (gpu_ == nullptr) return unsupported("a pretended prefix is for a GPU; compute one here");
  if (length < 0 || length >= options_.max_tokens) {
    return invalid_argument(str_cat("a prefix of ", length, " tokens leaves no room for more in ",
                                    options_.max_tokens));
  }
  constexpr int64_t kPeriod = 8 * 524287;  // bytes; no page is a multiple of it
  FATHOM_ASSIGN(Uploader upload, Uploader::create(kPeriod));
  FATHOM_ASSIGN(const std::span<std::byte> piece, upload.next_piece());
  Rng rng(seed);
  // Random signs and mantissas of numbers in [1, 2), in whatever format of 1, 2 or 4 bytes.
  const int64_t width = element_bytes(kv_.front().format);
  for (size_t i = 0; i + 4 <= piece.size(); i += 4) {
    const uint32_t random = rng.next_u32();
    const uint32_t bits = width == 1   ? (random & 0x87878787u) | 0x38383838u
                          : width == 2 ? (random & 0x807F807Fu) | 0x3F803F80u
                                       : (random & 0x807FFFFFu) | 0x3F800000u;
    std::memcpy(piece.data() + i, &bits, 4);
  }
  const int64_t filled = std::min(kPeriod, kv_memory_.size());
  FATHOM_TRY(upload.send_piece(kv_memory_.data(), filled));
  FATHOM_TRY(upload.repeat(kv_memory_.data(), filled, kv_memory_.size()));
  FATHOM_TRY(upload.finish());
  std::fill(lengths_.begin(), lengths_.end(), length);
  return {};
}

Result<GpuRunner::TimedStep> ForwardSession::time_decode(std::span<const int32_t> tokens,
                                                         Recorder& recorder,
                                                         int repetitions) {
  if (gpu_ == nullptr) return unsupported("a step is timed op by op on a GPU alone");
  FATHOM_TRY(list_decode(tokens));
  recorder.set_phase(Phase::kDecode);
  return gpu_->time_step({}, std::span(steps_).first(tokens.size()), recorder, repetitions);
}

Result<GpuRunner::TimedStep> ForwardSession::time_prefill(int64_t sequence,
                                                          std::span<const int32_t> tokens,
                                                          LogitRows logits,
                                                          Recorder& recorder,
                                                          int repetitions) {
  if (gpu_ == nullptr) return unsupported("a step is timed op by op on a GPU alone");
  const auto count = static_cast<int64_t>(tokens.size());
  if (count > options_.chunk) {
    return invalid_argument(str_cat("a pass takes at most ", options_.chunk, " tokens"));
  }
  FATHOM_TRY(check_room(sequence, count));
  const SequenceStep step{
      .tokens = tokens, .cached = length(sequence), .pages = pages_of(sequence), .logits = logits};
  recorder.set_phase(Phase::kPrefill);
  return gpu_->time_step(std::span(&step, 1), {}, recorder, repetitions);
}

SequenceStep ForwardSession::draft_step(std::span<const int32_t> tokens) const {
  return {.tokens = tokens, .cached = 0, .pages = pages_of(0), .logits = LogitRows::kAll};
}

Result<ForwardOut> ForwardSession::draft(std::span<const int32_t> tokens, const View& hidden) {
  // Continues in the arena of the pass that made `hidden`.
  const SequenceStep step = draft_step(tokens);
  if (gpu_ != nullptr) {
    ForwardOut on_gpu;
    FATHOM_TRY(gpu_->start_draft(std::span(&step, 1), hidden, on_gpu));
    FATHOM_ASSIGN(on_gpu.logits, gpu_->finish_logits());
    return on_gpu;
  }
  FATHOM_ASSIGN(Batch batch, batch_.build(std::span(&step, 1), {}));
  batch.kv = kv_;
  if (exec_.recorder != nullptr) exec_.recorder->set_phase(Phase::kDraft);
  ForwardOut out;
  FATHOM_TRY(model_.draft(exec_, batch, hidden, out));
  return out;
}

Result<GpuRunner::TimedStep> ForwardSession::time_draft(std::span<const int32_t> tokens,
                                                        const View& hidden,
                                                        Recorder& recorder,
                                                        int repetitions) {
  if (gpu_ == nullptr) return unsupported("a step is timed op by op on a GPU alone");
  const SequenceStep step = draft_step(tokens);
  recorder.set_phase(Phase::kDraft);
  return gpu_->time_draft(std::span(&step, 1), hidden, recorder, repetitions);
}

void ForwardSession::reset() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
}

int64_t ForwardSession::memory_bytes() const {
  return kv_memory_.size() + activations_.capacity() + scratch_.capacity();
}

}  // namespace fathom
