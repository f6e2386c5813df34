#include "fathom/bench/timing/cold_caches.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "fathom/base/checked_math.h"
#include "fathom/bench/machine/peak_loops.h"
#include "fathom/os/cpu_info.h"

namespace fathom {
namespace {

constexpr int64_t kMostCopies = 4096;
constexpr int64_t kMostCopyBytes = 256 << 20;  // the system clears a page slower than kernels read

}  // namespace

ColdPlan cold_plan(int64_t touched, int64_t copy, int64_t cache) {
  if (touched >= 2 * cache) return {};
  const int64_t wanted = ceil_div(2 * cache, std::max<int64_t>(1, touched)) + 1;
  const int64_t copies = std::min(wanted, kMostCopies);
  if (copies * copy > std::max(kMostCopyBytes, 4 * cache)) return {.sweep = true};
  return {.copies = static_cast<int>(copies)};
}

int64_t last_cache_bytes() {
  return cpu_info().l3_bytes > 0 ? cpu_info().l3_bytes : int64_t{32} << 20;
}

Status CacheSweep::run(ThreadPool& pool) {
  if (buffer_.size() == 0) {
    FATHOM_ASSIGN(buffer_, Buffer::allocate(DeviceKind::kCpu, 2 * last_cache_bytes(),
                                            "the memory that empties the caches"));
    std::memset(buffer_.data(), 0x5A, static_cast<size_t>(buffer_.size()));
  }
  std::atomic<uint64_t> sink = 0;
  pool.for_rows(buffer_.size() / 64, [&](int64_t begin, int64_t end) {
    sink += read_words({reinterpret_cast<const uint64_t*>(buffer_.data() + begin * 64),
                        static_cast<size_t>(end - begin) * 8});
  });
  return {};
}

}  // namespace fathom
