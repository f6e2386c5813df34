#include "fathom/runtime/executor/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fathom/base/rng.h"
#include "fathom/device/upload.h"
#include "fathom/runtime/executor/cpu_executor.h"
#include "fathom/runtime/executor/gpu_executor.h"
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
  activations_.reset();
  scratch_.reset();
  batch.cache = cache_.groups();
  batch.probe = step.probe;
  if (hidden_.size() > 0) {
    batch.hidden = make_view(hidden_.data(), {batch.num_tokens(), model_.state_width()},
                             model_.options().activations, "T,H");
    batch.hidden.on_device = hidden_.on_device();
  }
  return step.pass == Step::Pass::kDraft ? model_.draft(exec_, batch, step.draft_input, out)
                                         : model_.forward(exec_, batch, out);
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

Status Executor::pretend_rows(uint64_t seed) {
  int64_t width = 0;
  for (const CacheGroup& group : model_.cache_layout().groups) {
    for (const PageField& field : group.codec.fields) {
      const int64_t bytes = element_bytes(field.format);
      if (width != 0 && bytes != width) {
        return unsupported("a cache of several kinds of numbers is not filled at random");
      }
      width = bytes;
    }
  }
  constexpr int64_t kPeriod = 8 * 524287;  // bytes; no page is a multiple of it
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPeriod, cache_.bytes())));
  Rng rng(seed);
  // Random signs and mantissas of numbers in [1, 2), in whatever format of 1, 2 or 4 bytes.
  for (size_t i = 0; i + 4 <= piece.size(); i += 4) {
    const uint32_t random = rng.next_u32();
    const uint32_t bits = width == 1   ? (random & 0x87878787u) | 0x38383838u
                          : width == 2 ? (random & 0x807F807Fu) | 0x3F803F80u
                                       : (random & 0x807FFFFFu) | 0x3F800000u;
    std::memcpy(piece.data() + i, &bits, 4);
  }
  const auto filled = static_cast<int64_t>(piece.size());
  if (compute_.gpu == nullptr) {
    for (int64_t at = 0; at < cache_.bytes(); at += filled) {
      std::memcpy(cache_.data() + at, piece.data(),
                  static_cast<size_t>(std::min(filled, cache_.bytes() - at)));
    }
    return {};
  }
  if (filled == 0) return {};
  FATHOM_ASSIGN(Uploader upload, Uploader::create(filled));
  FATHOM_ASSIGN(const std::span<std::byte> pinned, upload.next_piece());
  std::ranges::copy(piece, pinned.begin());
  FATHOM_TRY(upload.send_piece(cache_.data(), filled));
  FATHOM_TRY(upload.repeat(cache_.data(), filled, cache_.bytes()));
  return upload.finish();
}

int64_t Executor::memory_bytes() const {
  return cache_.bytes() + hidden_.size() + activations_.capacity() + scratch_.capacity();
}

}  // namespace fathom
