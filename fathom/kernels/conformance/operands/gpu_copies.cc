// The half of CaseData that knows a GPU: places for operands and guards in its memory, and the way
// of bytes there and back.
#include <algorithm>

#include "fathom/base/check.h"
#include "fathom/kernels/conformance/operands/operands.h"

namespace fathom {
namespace {

/// What is only read comes back whole up to this size.
constexpr int64_t kReadBackBytes = 64 << 20;

}  // namespace

/// Calls f(block, place) for the parts of a copy, place being a member of GpuPlaces. The values of
/// a weight on a ring are no block: f gets null for them.
template <class F>
void CaseData::for_parts(const Operand& o, int copy, F&& f) {
  const auto c = static_cast<size_t>(copy);
  if (o.role != Role::kWeight) {
    f(&o.copies[c], &GpuPlaces::values);
    return;
  }
  const StoredWeight& s = o.stored[c];
  f(o.ring ? nullptr : &s.values, &GpuPlaces::values);
  if (s.scales.size() > 0) f(&s.scales, &GpuPlaces::scales);
  if (s.global.size() > 0) f(&s.global, &GpuPlaces::global);
}

Status CaseData::place_on_gpu(int copy, Arena& memory) {
  for (auto& o : operands_) {
    o->on_gpu.resize(std::max(o->on_gpu.size(), static_cast<size_t>(copy) + 1));
    Status status;
    for_parts(*o, copy, [&](const GuardedBlock* block, std::byte* GpuPlaces::*place) {
      if (!status.ok()) return;
      // A ring has no guards on the host; on the GPU it is one long stretch and needs none.
      const int64_t bytes = block != nullptr ? block->total() : weight_bytes(o->weight).values;
      Result<void*> taken = memory.take(bytes);
      if (!taken.ok()) {
        status = std::move(taken).status();
        return;
      }
      o->on_gpu[static_cast<size_t>(copy)].*place =
          static_cast<std::byte*>(*taken) + (block != nullptr ? GuardedBlock::kGuardBytes : 0);
    });
    if (!status.ok()) return std::move(status).add_context("operands of a case on the GPU");
  }
  return {};
}

Status CaseData::upload(int copy, Upload what, Stream& stream) const {
  for (const auto& o : operands_) {
    const bool written = o->role == Role::kOutput || o->role == Role::kInOut;
    if (what == Upload::kWritten && !written) continue;
    const GpuPlaces& at = o->on_gpu[static_cast<size_t>(copy)];
    Status status;
    for_parts(*o, copy, [&](const GuardedBlock* block, std::byte* GpuPlaces::*place) {
      if (!status.ok()) return;
      std::byte* to = at.*place;
      if (block != nullptr) {
        status = stream.copy(to - GuardedBlock::kGuardBytes, block->base(), block->total());
        return;
      }
      // Once around from the host, and from there on from the GPU's own memory.
      const int64_t total = weight_bytes(o->weight).values;
      const int64_t ring = std::min(total, o->ring.get_deleter().ring_bytes);
      status = stream.copy(to, o->ring.get(), ring);
      for (int64_t done = ring; status.ok() && done < total; done += std::min(done, total - done)) {
        status = stream.copy(to + done, to, std::min(done, total - done));
      }
    });
    FATHOM_TRY(std::move(status));
  }
  return {};
}

Status CaseData::download(int copy, Stream& stream) const {
  constexpr int64_t kGuard = GuardedBlock::kGuardBytes;
  for (const auto& o : operands_) {
    const bool written = o->role == Role::kOutput || o->role == Role::kInOut;
    const GpuPlaces& at = o->on_gpu[static_cast<size_t>(copy)];
    Status status;
    for_parts(*o, copy, [&](const GuardedBlock* block, std::byte* GpuPlaces::*place) {
      if (!status.ok() || block == nullptr) return;
      const std::byte* from = at.*place - kGuard;
      if (written || block->total() <= kReadBackBytes) {
        status = stream.copy(block->base(), from, block->total());
        return;
      }
      const int64_t after = block->total() - kGuard;
      status = stream.copy(block->base(), from, kGuard);
      if (status.ok()) status = stream.copy(block->base() + after, from + after, kGuard);
    });
    FATHOM_TRY(std::move(status));
  }
  return {};
}

std::vector<int64_t> CaseData::gpu_layout() const {
  std::vector<int64_t> out;
  for (const auto& o : operands_) {
    for_parts(*o, 0, [&](const GuardedBlock* block, std::byte* GpuPlaces::*) {
      out.push_back(block != nullptr ? block->total() : weight_bytes(o->weight).values);
    });
  }
  return out;
}

}  // namespace fathom
