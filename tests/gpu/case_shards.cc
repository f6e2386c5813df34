#include "tests/gpu/case_shards.h"

#include <bit>
#include <cerrno>
#include <new>
#include <sys/mman.h>

#include "fathom/base/str_cat.h"

namespace fathom {

void SmallestCase::add(LargeCase c) {
  const uint64_t packed = uint64_t{std::bit_cast<uint32_t>(c.size)} << 32 | c.number;
  uint64_t seen = packed_;
  while (packed < seen && !packed_.compare_exchange_weak(seen, packed)) {
  }
}

std::optional<LargeCase> SmallestCase::get() const {
  const uint64_t packed = packed_;
  if (packed == UINT64_MAX) return {};
  return LargeCase{.size = std::bit_cast<float>(static_cast<uint32_t>(packed >> 32)),
                   .number = static_cast<uint32_t>(packed)};
}

Result<CaseShards> CaseShards::create(const std::vector<size_t>& num_cases, size_t most) {
  CaseShards out;
  const size_t bytes = sizeof(KernelCounts) * num_cases.size() + sizeof(*out.next_);
  void* shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED)
    return out_of_memory(str_cat("no ", bytes, " bytes of memory shared by processes"));
  auto* const counts = static_cast<KernelCounts*>(shared);
  out.kernels_ = {counts, num_cases.size()};
  out.next_ = new (counts + num_cases.size()) std::atomic<size_t>{0};
  for (size_t k = 0; k < num_cases.size(); ++k) {
    const size_t shards = num_cases[k] == 0 ? 1 : (num_cases[k] - 1) / most + 1;
    new (counts + k) KernelCounts{.shards_left = static_cast<int>(shards)};
    for (size_t i = 0; i < shards; ++i) {
      out.shards_.push_back({.kernel = static_cast<int>(k),
                             .first = static_cast<int>(i),
                             .step = static_cast<int>(shards)});
    }
  }
  return out;
}

std::optional<Shard> CaseShards::take() {
  const size_t i = (*next_)++;
  if (i >= shards_.size()) return {};
  return shards_[i];
}

bool CaseShards::finish(const Shard& shard) {
  return --kernels_[static_cast<size_t>(shard.kernel)].shards_left == 0;
}

}  // namespace fathom
