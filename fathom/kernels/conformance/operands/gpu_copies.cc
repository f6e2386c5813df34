// The half of CaseData that knows a GPU: places for operands and guards in its memory, and the way
// of bytes there and back.
#include <algorithm>
#include <array>
#include <set>

#include "fathom/base/check.h"
#include "fathom/kernels/conformance/operands/operands.h"

namespace fathom {
namespace {

/// What is only read comes back whole up to this size.
constexpr int64_t kReadBackBytes = 64 << 20;

}  // namespace

/// Bytes on the GPU of values that are a ring here.
int64_t CaseData::ringed_bytes(const Operand& o) {
  return o.role == Role::kWeight ? weight_bytes(o.weight).values : o.bytes;
}

/// Calls f(block, place) for the parts of a copy, place being a member of GpuPlaces. Values on a
/// ring are no block: f gets null for them.
template <class F>
void CaseData::for_parts(const Operand& o, int copy, F&& f) {
  const auto c = static_cast<size_t>(copy);
  if (o.role != Role::kWeight) {
    f(o.ring ? nullptr : &o.copies[c], &GpuPlaces::values);
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
      const int64_t bytes = block != nullptr ? block->total() : ringed_bytes(*o);
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
      if (o->filled_on_gpu) {
        status = fill_output(*block, o->shape.format, to, stream);
        return;
      }
      if (block != nullptr) {
        status = stream.copy(to - GuardedBlock::kGuardBytes, block->base(), block->total());
        return;
      }
      // Once around from the host, and from there on from the GPU's own memory.
      const int64_t total = ringed_bytes(*o);
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
      if ((written && !comes_back_in_part(*o)) || block->total() <= kReadBackBytes) {
        status = stream.copy(block->base(), from, block->total());
        return;
      }
      const int64_t after = block->total() - kGuard;
      status = stream.copy(block->base(), from, kGuard);
      if (status.ok()) status = stream.copy(block->base() + after, from + after, kGuard);
    });
    FATHOM_TRY(std::move(status));
    if (comes_back_in_part(*o)) FATHOM_TRY(fetch_places(*o, copy, stream));
  }
  return {};
}

/// Poison and guards of an output, in place of an upload.
Status CaseData::fill_output(const GuardedBlock& block,
                             Format format,
                             std::byte* at,
                             Stream& stream) const {
  constexpr int64_t kGuard = GuardedBlock::kGuardBytes;
  std::array<std::byte, 8> poison;  // of one byte again and again
  poison_elements(format, poison.data(), 1);
  FATHOM_TRY(stream.copy(at - kGuard, block.base(), kGuard));
  FATHOM_TRY(stream.fill(at, std::to_integer<int>(poison[0]), block.size()));
  return stream.copy(at + block.size(), block.data() + block.size(),
                     block.total() - kGuard - block.size());
}

bool CaseData::comes_back_in_part(const Operand& o) const {
  const bool by_rows = std::ranges::none_of(
      expectations_, [](const Expectation& e) { return static_cast<bool>(e.all); });
  return o.filled_on_gpu && checks_.empty() && by_rows;
}

/// Brings the rows back in which places are compared.
Status CaseData::fetch_places(const Operand& o, int copy, Stream& stream) const {
  const GuardedBlock& block = o.copies[static_cast<size_t>(copy)];
  const std::byte* from = o.on_gpu[static_cast<size_t>(copy)].values;
  const int64_t cols = o.shape.dim(o.shape.rank - 1);
  const int64_t bytes = cols * element_bytes(o.shape.format);
  std::set<int64_t> rows;
  for (const Expectation& e : expectations_) {
    if (operands_[static_cast<size_t>(e.output.id_)].get() != &o) continue;
    for (const int64_t place : e.places)
      rows.insert(place / cols);
  }
  for (const int64_t row : rows) {
    const int64_t at = row_data(o, row) - o.copies[0].data();
    FATHOM_TRY(stream.copy(block.data() + at, from + at, bytes));
  }
  return {};
}

std::vector<int64_t> CaseData::gpu_layout() const {
  std::vector<int64_t> out;
  for (const auto& o : operands_) {
    for_parts(*o, 0, [&](const GuardedBlock* block, std::byte* GpuPlaces::*) {
      out.push_back(block != nullptr ? block->total() : ringed_bytes(*o));
    });
  }
  return out;
}

}  // namespace fathom
