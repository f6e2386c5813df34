#include "fathom/bench/machine/conditions.h"

#include <charconv>
#include <fstream>
#include <time.h>

#include "fathom/os/clock.h"
#include "fathom/os/memory.h"
#include "fathom_commit.h"

namespace fathom {
namespace {

constexpr std::string_view kCommit = FATHOM_COMMIT;

}  // namespace

std::string_view build_commit() {
  return kCommit;
}

Figure cpu_clock_mhz() {
  // Linux states it per processor, "cpu MHz : 2596.096"; the first is as good as any.
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("cpu MHz", 0) != 0) continue;
    const size_t at = line.find(": ");
    if (at == std::string::npos) return {};
    double mhz = 0;
    const char* begin = line.data() + at + 2;
    if (std::from_chars(begin, line.data() + line.size(), mhz).ec != std::errc{}) return {};
    return mhz;
  }
  return {};
}

BenchConditions bench_conditions(Isa isa, int num_threads) {
  const CpuInfo& cpu = cpu_info();
  return {.fathom_version = FATHOM_VERSION,
          .commit = std::string(kCommit),
          .timestamp = utc_timestamp(static_cast<int64_t>(time(nullptr))),
          .host_cpu = cpu.model,
          .host_isa = std::string(isa_name(isa)),
          .host_cores = cpu.num_cores,
          .host_mem_bytes = host_memory().total_bytes,
          .device_name = cpu.model,
          .arch = std::string(isa_name(isa)),
          .threads = num_threads};
}

BenchConditions bench_conditions(Isa isa, int num_threads, const DeviceInfo& gpu) {
  BenchConditions c = bench_conditions(isa, num_threads);
  c.device_name = gpu.name;
  c.backend = "cuda";
  c.arch = str_cat("sm_", gpu.sm);
  return c;
}

}  // namespace fathom
