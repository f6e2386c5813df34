#include "fathom/os/affinity.h"

#include <cstddef>
#include <sched.h>

namespace fathom {
namespace {

// cpu_set_t holds 1,024 CPUs; the system call fails on kernels configured for more unless the mask
// is large enough.
constexpr int kMaxCpus = 16384;
constexpr size_t kMasks = kMaxCpus / CPU_SETSIZE;

}  // namespace

std::vector<int> thread_affinity() {
  std::vector<cpu_set_t> mask(kMasks);
  std::vector<int> cpus;
  if (sched_getaffinity(0, kMasks * sizeof(cpu_set_t), mask.data()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, kMasks * sizeof(cpu_set_t), mask.data())) cpus.push_back(cpu);
  }
  return cpus;
}

bool set_thread_affinity(std::span<const int> cpus) {
  std::vector<cpu_set_t> mask(kMasks);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= kMaxCpus) return false;
    CPU_SET_S(cpu, kMasks * sizeof(cpu_set_t), mask.data());
  }
  return sched_setaffinity(0, kMasks * sizeof(cpu_set_t), mask.data()) == 0;
}

}  // namespace fathom
