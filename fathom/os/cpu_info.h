// What this processor can do: instruction sets that both the hardware and the operating system
// offer, cores this process may use, caches, NUMA nodes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

/// Instruction-set levels that kernels are built for, weakest first; each includes the ones before.
enum class Isa {
  kPortable,  ///< plain C++
  kAvx2,      ///< AVX2, FMA, F16C, BMI2
  kAvx512,    ///< AVX-512 F, BW, VL, DQ, VBMI, VNNI, BF16
  kAmx,       ///< AMX tiles with BF16 and INT8, permitted by the kernel
};

inline constexpr int kNumIsas = static_cast<int>(Isa::kAmx) + 1;

/// "portable", "avx2", "avx512", "amx".
std::string_view isa_name(Isa isa);

/// The level of that name, or InvalidArgument listing the names.
Result<Isa> parse_isa(std::string_view name);

/// The level that `--isa NAME` asks for: it may only lower `best`. "auto" and "" give `best`.
/// Errors: InvalidArgument for an unknown name, Unsupported for a level above `best`.
Result<Isa> limit_isa(std::string_view name, Isa best);

/// Single instruction sets. True means usable: the processor has it, and the operating system saves
/// its registers.
struct CpuFeatures {
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool bmi2 = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512vl = false;
  bool avx512dq = false;
  bool avx512vbmi = false;
  bool avx512vnni = false;
  bool avx512bf16 = false;
  bool amx_tile = false;
  bool amx_bf16 = false;
  bool amx_int8 = false;
};

/// The strongest level whose parts are all there. Says nothing about permission for AMX tiles.
Isa isa_of(const CpuFeatures& features);

struct CpuInfo {
  std::string model;  ///< brand string, or "unknown"
  CpuFeatures features;

  /// CPUs this process was allowed to run on when it first asked, one hyperthread of each core
  /// before the second ones. Never empty.
  std::vector<int> allowed_cpus;
  int num_cores = 1;       ///< physical cores among the allowed CPUs
  int num_numa_nodes = 1;  ///< online in this machine

  // Bytes of one cache, 0 if unknown.
  int64_t l1d_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t l3_bytes = 0;

  int num_cpus() const { return static_cast<int>(allowed_cpus.size()); }
};

/// This machine. Found out at the first call and kept; thread-safe.
const CpuInfo& cpu_info();

/// Asks the kernel, once per process, for permission to use AMX tile data. Call it before threads
/// start. Errors: Unsupported when the processor or the kernel has no AMX.
Status enable_amx();

/// The strongest level usable here. Asks for AMX permission when the processor has AMX.
Isa best_isa();

/// Parses the kernel's lists of numbers, "0-2,5\n" to {0, 1, 2, 5}. Malformed text gives an empty
/// list; ranges above 65,536 numbers are malformed.
std::vector<int> parse_cpu_list(std::string_view text);

/// Parses the kernel's cache sizes, "32K\n" or "1M" to bytes; 0 if malformed.
int64_t parse_cache_size(std::string_view text);

}  // namespace fathom
