#include "fathom/runtime/executor/executor.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "fathom/device/upload.h"
#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/spec/draft_tree/best_in_order.h"
#include "fathom/kernels/spec/draft_tree/draft_tree.h"
#include "fathom/runtime/executor/cpu_executor.h"
#include "fathom/runtime/executor/gpu_executor.h"
#include "fathom/runtime/kv/random_rows.h"
#include "fathom/runtime/step_fault.h"

namespace fathom {

Executor::Executor(const Model& model, const Compute& compute, ExecutorSettings settings)
    : model_(model),
      compute_(compute),
      settings_(std::move(settings)),
      block_tokens_(model.cache_layout().block_tokens),
      batch_(model.cache_layout()) {}

Result<std::unique_ptr<Executor>> Executor::create(const Model& model,
                                                   const Compute& compute,
                                                   ExecutorSettings settings) {
  FATHOM_CHECK(model.weights().is_host() == (compute.gpu == nullptr),
               "the model lies where its steps run");
  if (compute.gpu != nullptr) return GpuExecutor::create(model, compute, std::move(settings));
  return CpuExecutor::create(model, compute, std::move(settings));
}

Status Executor::allocate() {
  const DeviceKind device = compute_.gpu == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda;
  const CacheLayout layout = model_.cache_layout();
  FATHOM_ASSIGN(cache_,
                CacheStorage::allocate(layout, settings_.num_blocks, settings_.num_slots, device));
  FATHOM_ASSIGN(Buffer activations, Buffer::allocate(device, settings_.memory.activation_bytes,
                                                     "the activations of a step"));
  FATHOM_ASSIGN(Buffer scratch, Buffer::allocate(device, settings_.memory.scratch_bytes,
                                                 "the workspaces of kernels"));
  FATHOM_ASSIGN(hidden_, Buffer::allocate(device, settings_.memory.hidden_bytes,
                                          "states that the draft head reads"));
  activations_ = Arena(std::move(activations));
  scratch_ = Arena(std::move(scratch));
  exec_.kernels = &compute_.kernels();
  exec_.pool = compute_.pool;
  exec_.num_threads = compute_.pool->size();
  exec_.activations = &activations_;
  exec_.scratch = &scratch_;
  exec_.pins = pins();
  const StepShape& shape = settings_.shape;
  chained_.reserve(static_cast<size_t>(shape.max_num_seqs));
  state_rows_.reserve(static_cast<size_t>(shape.max_tokens()));
  if (shape.trees) {
    node_paths_.reserve(static_cast<size_t>(shape.tree_tokens()));
    // A tree of the draft layer has no root.
    chained_parents_.reserve(static_cast<size_t>(shape.max_num_seqs * kMostTreeRows));
  }
  return {};
}

// Reads of states, and writes of those that take their place, must lie in the same memory.
Status Executor::check_drafts(const Step& step) const {
  if (step.chain == 1 && step.draft_rows.empty()) return {};
  int64_t tokens = 0;
  for (const auto* range : {&step.prefill, &step.decode}) {
    for (const SequenceStep& s : *range)
      tokens += std::ssize(s.tokens);
  }
  FATHOM_CHECK(step.pass == Step::Pass::kDraft && std::ssize(step.draft_rows) == tokens &&
                   step.draft_input.data == hidden_.data() && hidden_.size() > 0,
               "a draft pass reads a row of kept states for each token");
  return step.chain == 1 ? Status{} : check_chain(step, tokens);
}

int64_t Executor::most_levels(int64_t branches) const {
  const int64_t guesses = std::min(kMostBranches, shape().num_ids);
  if (!shape().trees || branches > guesses) return 1;
  return std::max<int64_t>(std::min(shape().most_chained(), shape().max_queries / branches), 1);
}

Status Executor::check_chain(const Step& step, int64_t tokens) const {
  const bool trees = step.chains_levels();
  FATHOM_CHECK(!step.decode.empty() && !step.decode.front().tokens.empty(),
               "a chain has sequences with tokens");
  const int64_t each = trees ? step.tokens_each() : 1;
  const int64_t most = trees ? most_levels(each) : shape().most_chained();
  if (step.chain < 1 || step.chain > most) {
    return invalid_argument(
        str_cat("a chain of ", step.chain, " draft passes, expected 1 to ", most));
  }
  for (const SequenceStep& s : step.decode) {
    const int64_t rows = std::ssize(s.parents) + (step.chain - 1) * each;
    if (!trees || rows <= kMostTreeRows) continue;
    return invalid_argument(str_cat("a chain of ", step.chain, " levels ends at ", rows,
                                    " rows of a tree, expected at most ", kMostTreeRows));
  }
  const bool alike = std::ranges::all_of(step.decode, [&](const SequenceStep& s) {
    const LogitRows wanted = trees ? LogitRows::kAll : s.logits;
    return std::ssize(s.tokens) == each && s.parents.empty() != trees && s.logits == wanted &&
           s.logits != LogitRows::kNone && s.padding == 0;
  });
  const bool asked = std::ranges::all_of(step.samples, [&](const SampleRow& row) {
    return trees ? needs_best_tokens(row) && row.params->top_logprobs == each
                 : !asks_for_logprobs(row);
  });
  FATHOM_CHECK(alike && asked && step.prefill.empty() && step.wants == StepWants::kTokens &&
                   std::ssize(step.samples) == step.chain * tokens &&
                   (!trees || std::ssize(step.node_paths) == tokens),
               "a chain samples as many tokens of each sequence in each pass");
  return {};
}

// Who follows whom in later levels is not known yet. Rows and positions are those of any nodes of
// that depth.
std::span<const SequenceStep> Executor::requests_of(const Step& step, int64_t pass) {
  if (pass == 0) return step.decode;
  chained_.assign(step.decode.begin(), step.decode.end());
  chained_parents_.clear();
  for (SequenceStep& s : chained_) {
    const auto each = static_cast<int32_t>(s.tokens.size());
    s.cached += pass * each;
    if (s.parents.empty()) continue;
    auto row = static_cast<int32_t>(s.parents.size());
    chained_parents_.insert(chained_parents_.end(), s.parents.begin(), s.parents.end());
    for (int64_t i = 0; i < pass * each; ++i, ++row)
      chained_parents_.push_back(row - each);
  }
  size_t first = 0;
  for (SequenceStep& s : chained_) {
    if (s.parents.empty()) continue;
    const size_t rows = s.parents.size() + static_cast<size_t>(pass) * s.tokens.size();
    s.parents = std::span(chained_parents_).subspan(first, rows);
    first += rows;
  }
  return chained_;
}

View Executor::state_rows(const Step& step, int64_t num_tokens) {
  if (step.draft_rows.empty()) return {};
  state_rows_.assign(step.draft_rows.begin(), step.draft_rows.end());
  state_rows_.resize(static_cast<size_t>(num_tokens), step.draft_rows.back());
  return make_view(state_rows_.data(), {num_tokens}, Format::kI32, "T");
}

View Executor::node_paths(const Step& step, int64_t num_tokens) {
  if (step.node_paths.empty()) return {};
  node_paths_.assign(step.node_paths.begin(), step.node_paths.end());
  node_paths_.resize(static_cast<size_t>(num_tokens), 0.0f);
  return make_view(node_paths_.data(), {num_tokens}, Format::kF32, "T");
}

void Executor::Level::enter(Batch& batch) const {
  batch.token_ids = tokens;
  batch.state_rows = rows;
  batch.attention.decode.tree_masks = masks;
}

Status Executor::choose_level(const View& ids,
                              const View& logprobs,
                              const Level& from,
                              const Level& to) {
  return launch<DraftLevel>(exec_, "draft_level",
                            {.ids = ids,
                             .logprobs = logprobs,
                             .paths = from.paths,
                             .masks = from.masks,
                             .tokens = to.tokens,
                             .rows = to.rows,
                             .next_paths = to.paths,
                             .next_masks = to.masks});
}

Status Executor::forward(const Step& step, int64_t pass, Batch& batch, ForwardOut& out) {
  scratch_.reset();
  batch.cache = cache_.groups();
  batch.probe = step.probe;
  const int64_t num_tokens = batch.num_tokens();
  if (step.pass == Step::Pass::kForward) {
    if (hidden_.size() > 0) batch.hidden = kept_states(num_tokens);
    return model_.forward(exec_, batch, out);
  }
  if (step.draft_rows.empty()) return model_.draft(exec_, batch, step.draft_input, out);
  batch.hidden = kept_states(num_tokens);
  // All rows there are, so that captured passes do not depend on how many the one before left.
  const int64_t width = model_.state_width() * element_bytes(model_.options().activations);
  View read = batch.hidden;
  if (pass == 0) {
    read = kept_states(hidden_.size() / width);
    read.axes = "kept,H";
  }
  return model_.draft(exec_, batch, read, out);
}

View Executor::kept_states(int64_t num_tokens) {
  View states = make_view(hidden_.data(), {num_tokens, model_.state_width()},
                          model_.options().activations, "T,H");
  states.on_device = hidden_.on_device();
  return states;
}

namespace {

// What records of a step call it.
Phase phase_of(const Step& step) {
  if (step.pass == Step::Pass::kDraft) return Phase::kDraft;
  if (!step.prefill.empty()) return Phase::kPrefill;
  const bool verifies =
      std::ranges::any_of(step.decode, [](const SequenceStep& s) { return s.tokens.size() > 1; });
  return verifies ? Phase::kVerify : Phase::kDecode;
}

}  // namespace

Result<StepResults> Executor::run(const Step& step) {
  FATHOM_TRY(start(step));
  return finish();
}

Status Executor::start(const Step& step) {
  FATHOM_TRY(step_fault(check_drafts(step), pins()));
  if (exec_.recorder != nullptr) exec_.recorder->set_phase(phase_of(step));
  return step_fault(submit(step), pins());
}

Result<StepResults> Executor::finish() {
  Result<StepResults> results = collect();
  if (!results.ok()) return step_fault(std::move(results).status(), pins());
  return results;
}

namespace {

// Copies of `piece` one behind the other; `upload` is null on the CPU.
Status fill_by_repeating(std::span<const std::byte> piece,
                         std::span<std::byte> memory,
                         Uploader* upload) {
  if (upload == nullptr) {
    for (size_t at = 0; at < memory.size(); at += piece.size())
      std::memcpy(memory.data() + at, piece.data(), std::min(piece.size(), memory.size() - at));
    return {};
  }
  FATHOM_TRY(upload->copy(memory.data(), piece));
  return upload->repeat(memory.data(), std::ssize(piece), std::ssize(memory));
}

}  // namespace

Status Executor::pretend_rows(uint64_t seed) {
  constexpr int64_t kMostBytes = 4 << 20;  // repeated through the rest of a layer
  std::optional<Uploader> upload;
  if (compute_.gpu != nullptr) {
    FATHOM_ASSIGN(upload, Uploader::create(kMostBytes));
  }
  const std::vector<CacheGroup>& groups = model_.cache_layout().groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].layers.empty()) continue;
    const int64_t page_bytes = groups[g].codec.page_bytes(groups[g].rows);
    const int64_t pages = cache_.groups()[g].at(0).dim(0);
    const int64_t random = std::min(pages, std::max<int64_t>(1, kMostBytes / page_bytes));
    const std::vector<std::byte> piece = random_pages(groups[g], random, seed + g);
    for (size_t layer = 0; layer < groups[g].layers.size(); ++layer) {
      // The first field begins the page, and the first page the layer.
      auto* to = static_cast<std::byte*>(cache_.groups()[g].at(layer).data);
      const std::span<std::byte> memory(to, static_cast<size_t>(pages * page_bytes));
      FATHOM_TRY(fill_by_repeating(piece, memory, upload ? &*upload : nullptr));
    }
  }
  return upload ? upload->finish() : Status{};
}

int64_t Executor::memory_bytes() const {
  return cache_.bytes() + hidden_.size() + activations_.capacity() + scratch_.capacity();
}

}  // namespace fathom
