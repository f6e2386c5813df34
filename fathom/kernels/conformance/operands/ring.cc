// Memory mapped onto a ring: the same physical pages again and again, so that a stack of weights of
// 22 GB takes no more memory than a multiple of the last cache. Caches are addressed by physical
// memory, so a ring larger than they are is read from memory every time around. What a GPU reads
// has all its bytes there, and a small ring here.
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

void RingUnmap::operator()(std::byte* p) const {
  munmap(p, static_cast<size_t>(bytes));
}

int64_t ring_unit(int64_t row_bytes) {
  return std::lcm(int64_t{sysconf(_SC_PAGESIZE)}, row_bytes);
}

std::unique_ptr<std::byte, RingUnmap> map_ring(int64_t ring, int64_t total) {
  total = align_up(total, int64_t{sysconf(_SC_PAGESIZE)});
  ring = std::min(ring, total);
  const int fd = memfd_create("fathom-ring", MFD_CLOEXEC);
  FATHOM_CHECK(fd >= 0 && ftruncate(fd, ring) == 0, "no memory for a ring of operands");
  void* base = mmap(nullptr, static_cast<size_t>(total), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  FATHOM_CHECK(base != MAP_FAILED, "no address space for a ring of operands");
  for (int64_t at = 0; at < total; at += ring) {
    const auto bytes = static_cast<size_t>(std::min(ring, total - at));
    void* piece = mmap(static_cast<std::byte*>(base) + at, bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, fd, 0);
    FATHOM_CHECK(piece != MAP_FAILED, "cannot map a ring of operands");
  }
  close(fd);
  return std::unique_ptr<std::byte, RingUnmap>(static_cast<std::byte*>(base),
                                               RingUnmap{total, ring});
}

std::unique_ptr<std::byte, RingUnmap> CaseData::map_weight_ring(const CaseWeightSpec& spec,
                                                                int64_t ring_bytes) {
  const int64_t unit =
      ring_unit(spec.layout == WeightLayout::kRows16 ? rows16_group_bytes(spec.format, spec.cols)
                                                     : value_bytes_for(spec.format, 1, spec.cols));
  const int64_t total = weight_bytes(spec).values;
  const int64_t enough = std::max(4 * cpu_info().l3_bytes, int64_t{256} << 20);
  const int64_t ring = align_up(std::min(ring_bytes, enough), unit);
  if (ring >= total) return nullptr;  // no repetition: ordinary memory does
  return map_ring(ring, total);
}

}  // namespace fathom
