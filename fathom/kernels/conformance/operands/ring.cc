// A stack of weights mapped onto a ring: the same physical pages again and again, so that a stack
// of 22 GB takes no more memory than a multiple of the last cache. Caches are addressed by physical
// memory, so a ring larger than they are is read from memory every time around.
#include <algorithm>
#include <numeric>
#include <sys/mman.h>
#include <unistd.h>

#include "fathom/base/check.h"
#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/conformance/operands/operands.h"
#include "fathom/os/cpu_info.h"

namespace fathom {
namespace {

// The least number of bytes after which values and pages both start anew.
int64_t ring_unit(const CaseWeightSpec& spec) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t row_bytes = spec.layout == WeightLayout::kRows16
                                ? rows16_group_bytes(spec.format, spec.cols)
                                : value_bytes_for(spec.format, 1, spec.cols);
  return std::lcm(page, row_bytes);
}

}  // namespace

void RingUnmap::operator()(std::byte* p) const {
  munmap(p, static_cast<size_t>(bytes));
}

std::unique_ptr<std::byte, RingUnmap> CaseData::map_ring(const CaseWeightSpec& spec,
                                                         int64_t ring_bytes) {
  const int64_t unit = ring_unit(spec);
  const int64_t total = align_up(weight_bytes(spec).values, int64_t{sysconf(_SC_PAGESIZE)});
  const int64_t enough = std::max(4 * cpu_info().l3_bytes, int64_t{256} << 20);
  const int64_t ring = align_up(std::min(ring_bytes, enough), unit);
  if (ring >= total) return nullptr;  // no repetition: ordinary memory does
  const int fd = memfd_create("fathom-weight-ring", MFD_CLOEXEC);
  FATHOM_CHECK(fd >= 0 && ftruncate(fd, ring) == 0, "no memory for a ring of weights");
  void* base = mmap(nullptr, static_cast<size_t>(total), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  FATHOM_CHECK(base != MAP_FAILED, "no address space for a ring of weights");
  for (int64_t at = 0; at < total; at += ring) {
    const auto bytes = static_cast<size_t>(std::min(ring, total - at));
    void* piece = mmap(static_cast<std::byte*>(base) + at, bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, fd, 0);
    FATHOM_CHECK(piece != MAP_FAILED, "cannot map a ring of weights");
  }
  close(fd);
  return std::unique_ptr<std::byte, RingUnmap>(static_cast<std::byte*>(base),
                                               RingUnmap{total, ring});
}

}  // namespace fathom
