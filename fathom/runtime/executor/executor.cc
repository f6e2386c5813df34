#include "fathom/runtime/executor/executor.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "fathom/device/upload.h"
#include "fathom/runtime/executor/cpu_executor.h"
#include "fathom/runtime/executor/gpu_executor.h"
#include "fathom/runtime/kv/random_rows.h"
#include "fathom/runtime/step_fault.h"

namespace fathom {

Executor::Executor(const Model& model, const Compute& compute, ExecutorSettings settings)
    : model_(model),
      compute_(compute),
      settings_(std::move(settings)),
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
  return {};
}

Status Executor::forward(const Step& step, Batch& batch, ForwardOut& out) {
  View draft_input = step.draft_input;
  if (!step.draft_rows.empty()) {
    FATHOM_ASSIGN(draft_input, gather_states(step, batch.num_tokens()));
  }
  activations_.reset();
  scratch_.reset();
  batch.cache = cache_.groups();
  batch.probe = step.probe;
  if (step.pass == Step::Pass::kDraft) return model_.draft(exec_, batch, draft_input, out);
  if (hidden_.size() > 0) batch.hidden = kept_states(batch.num_tokens());
  return model_.forward(exec_, batch, out);
}

View Executor::kept_states(int64_t num_tokens) {
  View states = make_view(hidden_.data(), {num_tokens, model_.state_width()},
                          model_.options().activations, "T,H");
  states.on_device = hidden_.on_device();
  return states;
}

// In the memory of the forward pass, whose states they may be: rows move towards the front, so a
// piece as long as its way overwrites nothing that is still to be read. Tokens of padding read what
// the last one reads.
Result<View> Executor::gather_states(const Step& step, int64_t num_tokens) {
  const std::span<const int32_t> rows = step.draft_rows;
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t width = model_.state_width() * element_bytes(model_.options().activations);
  FATHOM_CHECK(count <= num_tokens && num_tokens * width <= hidden_.size(),
               "the executor was made with room for drafts");
  auto* const to = hidden_.data();
  const auto* const from = static_cast<const std::byte*>(step.draft_input.data);
  const auto copy = [&](int64_t dst, const std::byte* src, int64_t bytes) -> Status {
    if (compute_.gpu != nullptr) return exec_.stream->copy(to + dst, src, bytes);
    std::memcpy(to + dst, src, static_cast<size_t>(bytes));
    return {};
  };
  for (int64_t i = 0; i < count;) {
    const int64_t first = rows[static_cast<size_t>(i)];
    int64_t n = 1;
    while (i + n < count && rows[static_cast<size_t>(i + n)] == first + n)
      ++n;
    if (from == to) {
      FATHOM_CHECK(first >= i, "rows of states ascend");
      if (first > i) n = std::min(n, first - i);
    }
    if (from != to || first != i) FATHOM_TRY(copy(i * width, from + first * width, n * width));
    i += n;
  }
  for (int64_t i = count; i < num_tokens; ++i)
    FATHOM_TRY(copy(i * width, to + (count - 1) * width, width));
  return kept_states(num_tokens);
}

Result<StepResults> Executor::run(const Step& step) {
  FATHOM_TRY(start(step));
  return finish();
}

Status Executor::start(const Step& step) {
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
