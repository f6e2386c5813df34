#include "fathom/os/cpu_info.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "fathom/base/checked_math.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/affinity.h"
#include "fathom/os/file.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fathom {
namespace {

constexpr std::array<std::string_view, kNumIsas> kIsaNames = {"portable", "avx2", "avx512", "amx"};

std::string isa_names_up_to(Isa last) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    str_append(names, i == 0 ? "" : ", ");
    str_append(names, kIsaNames[static_cast<size_t>(i)]);
  }
  return names;
}

#if defined(__x86_64__)

struct CpuidRegisters {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros for a leaf that the processor does not have.
CpuidRegisters cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  CpuidRegisters r;
  if (__get_cpuid_max(leaf & 0x80000000u, nullptr) < leaf) return r;
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

constexpr bool bit(uint32_t word, int index) {
  return ((word >> index) & 1) != 0;
}

// XCR0: which register files the operating system saves. Zero without OSXSAVE.
uint64_t saved_registers() {
  if (!bit(cpuid(1).ecx, 27)) return 0;
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Intel SDM volume 1, 13.3 (XCR0 bits) and volume 2, CPUID leaves 1 and 7.
CpuFeatures read_features() {
  constexpr uint64_t kAvxState = 0x6;       // XMM, YMM
  constexpr uint64_t kAvx512State = 0xe6;   // and opmask, ZMM_Hi256, Hi16_ZMM
  constexpr uint64_t kAmxState = 0x6'0000;  // XTILECFG, XTILEDATA
  const uint64_t saved = saved_registers();
  const bool avx = (saved & kAvxState) == kAvxState;
  const bool avx512 = (saved & kAvx512State) == kAvx512State;
  const bool amx = (saved & kAmxState) == kAmxState;
  const CpuidRegisters one = cpuid(1);
  const CpuidRegisters seven = cpuid(7);
  const CpuidRegisters seven_one = cpuid(7, 1);
  return {
      .avx2 = avx && bit(seven.ebx, 5),
      .fma = avx && bit(one.ecx, 12),
      .f16c = avx && bit(one.ecx, 29),
      .bmi2 = bit(seven.ebx, 8) && bit(seven.ebx, 3),  // with BMI1, which -mbmi2 code may use
      .avx512f = avx512 && bit(seven.ebx, 16),
      .avx512bw = avx512 && bit(seven.ebx, 30),
      .avx512vl = avx512 && bit(seven.ebx, 31),
      .avx512dq = avx512 && bit(seven.ebx, 17),
      .avx512vbmi = avx512 && bit(seven.ecx, 1),
      .avx512vnni = avx512 && bit(seven.ecx, 11),
      .avx512bf16 = avx512 && bit(seven_one.eax, 5),
      .amx_tile = amx && bit(seven.edx, 24),
      .amx_bf16 = amx && bit(seven.edx, 22),
      .amx_int8 = amx && bit(seven.edx, 25),
  };
}

std::string read_model() {
  if (cpuid(0x80000004).eax == 0 && cpuid(0x80000002).eax == 0) return "unknown";
  std::string name;
  for (uint32_t leaf = 0x80000002; leaf <= 0x80000004; ++leaf) {
    const CpuidRegisters r = cpuid(leaf);
    char text[16];
    std::memcpy(text, &r, sizeof text);
    name.append(text, sizeof text);
  }
  name = name.substr(0, name.find('\0'));
  const size_t first = name.find_first_not_of(' ');
  if (first == std::string::npos) return "unknown";
  return name.substr(first, name.find_last_not_of(' ') - first + 1);
}

#else

CpuFeatures read_features() {
  return {};
}

std::string read_model() {
  return "unknown";
}

#endif

std::string read_text(const std::string& path) {
  Result<std::string> text = read_kernel_file(path);
  return text.ok() ? std::move(*text) : std::string{};
}

// The number that the text starts with.
std::optional<int64_t> leading_number(std::string_view text) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || value < 0) return std::nullopt;
  return value;
}

std::string cpu_path(int cpu, std::string_view rest) {
  return str_cat("/sys/devices/system/cpu/cpu", cpu, "/", rest);
}

// (package, core) of a CPU; each CPU is its own core where the kernel does not tell.
std::pair<int64_t, int64_t> core_of(int cpu) {
  const auto package = leading_number(read_text(cpu_path(cpu, "topology/physical_package_id")));
  const auto core = leading_number(read_text(cpu_path(cpu, "topology/core_id")));
  if (!package || !core) return {-1, cpu};
  return {*package, *core};
}

void read_cpus(CpuInfo& info) {
  std::vector<int> cpus = thread_affinity();
  if (cpus.empty()) cpus = {0};
  std::set<std::pair<int64_t, int64_t>> cores;
  std::vector<int> second_threads;
  for (const int cpu : cpus) {
    (cores.insert(core_of(cpu)).second ? info.allowed_cpus : second_threads).push_back(cpu);
  }
  info.num_cores = static_cast<int>(info.allowed_cpus.size());
  info.allowed_cpus.insert(info.allowed_cpus.end(), second_threads.begin(), second_threads.end());
}

void read_caches(CpuInfo& info) {
  constexpr int kMaxCaches = 16;
  for (int index = 0; index < kMaxCaches; ++index) {
    const std::string dir = str_cat("cache/index", index, "/");
    const int cpu = info.allowed_cpus.front();
    const std::string type = read_text(cpu_path(cpu, str_cat(dir, "type")));
    if (type.empty()) break;
    if (type.starts_with("Instruction")) continue;
    const int64_t bytes = parse_cache_size(read_text(cpu_path(cpu, str_cat(dir, "size"))));
    switch (leading_number(read_text(cpu_path(cpu, str_cat(dir, "level")))).value_or(0)) {
      case 1:
        info.l1d_bytes = bytes;
        break;
      case 2:
        info.l2_bytes = bytes;
        break;
      case 3:
        info.l3_bytes = bytes;
        break;
      default:
        break;
    }
  }
}

CpuInfo read_cpu_info() {
  CpuInfo info;
  info.model = read_model();
  info.features = read_features();
  read_cpus(info);
  const auto nodes = parse_cpu_list(read_text("/sys/devices/system/node/online"));
  info.num_numa_nodes = std::max(1, static_cast<int>(nodes.size()));
  read_caches(info);
  return info;
}

// Zero, or the errno of the refusal.
int request_amx() {
#if defined(__x86_64__)
  // Documentation/arch/x86/xstate.rst of the Linux kernel; the constants are in asm/prctl.h since
  // 5.16, which is newer than the headers of some supported systems.
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureXtiledata = 18;
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0) return 0;
  return errno;
#else
  return ENOSYS;
#endif
}

}  // namespace

std::string_view isa_name(Isa isa) {
  return kIsaNames[static_cast<size_t>(isa)];
}

Result<Isa> parse_isa(std::string_view name) {
  const auto found = std::find(kIsaNames.begin(), kIsaNames.end(), name);
  if (found != kIsaNames.end()) return static_cast<Isa>(found - kIsaNames.begin());
  return invalid_argument(str_cat("unknown instruction set '", name, "', expected one of ",
                                  isa_names_up_to(Isa::kAmx)));
}

Result<Isa> limit_isa(std::string_view name, Isa best) {
  if (name.empty() || name == "auto") return best;
  FATHOM_ASSIGN(const Isa wanted, parse_isa(name));
  if (wanted <= best) return wanted;
  return unsupported(str_cat("instruction set ", name,
                             " is not usable on this machine, choose from ", isa_names_up_to(best),
                             "\nhint: --isa auto takes the best of them"));
}

Isa isa_of(const CpuFeatures& f) {
  if (!(f.avx2 && f.fma && f.f16c && f.bmi2)) return Isa::kPortable;
  if (!(f.avx512f && f.avx512bw && f.avx512vl && f.avx512dq && f.avx512vbmi && f.avx512vnni &&
        f.avx512bf16)) {
    return Isa::kAvx2;
  }
  if (!(f.amx_tile && f.amx_bf16 && f.amx_int8)) return Isa::kAvx512;
  return Isa::kAmx;
}

const CpuInfo& cpu_info() {
  static const CpuInfo info = read_cpu_info();
  return info;
}

Status enable_amx() {
  if (!cpu_info().features.amx_tile) return unsupported("this processor has no AMX");
  static const int refusal = request_amx();
  if (refusal == 0) return {};
  return unsupported(
      str_cat("the kernel refuses AMX tile data: ", std::generic_category().message(refusal)));
}

Isa best_isa() {
  static const Isa best = [] {
    const Isa isa = isa_of(cpu_info().features);
    return isa == Isa::kAmx && !enable_amx().ok() ? Isa::kAvx512 : isa;
  }();
  return best;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int64_t kMaxNumbers = 65'536;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' '))
    text.remove_suffix(1);
  std::vector<int> numbers;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::string_view last_text =
        item.substr(item.find('-') == item.npos ? 0 : item.find('-') + 1);
    const auto first = leading_number(item);
    const auto last = leading_number(last_text);
    if (!first || !last || *last < *first || *last >= kMaxNumbers) return {};
    for (int64_t n = *first; n <= *last; ++n)
      numbers.push_back(static_cast<int>(n));
    if (static_cast<int64_t>(numbers.size()) > kMaxNumbers) return {};
    text.remove_prefix(std::min(text.size(), item.size() + 1));
  }
  return numbers;
}

int64_t parse_cache_size(std::string_view text) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || value < 0) return 0;
  const std::string_view unit(parsed.ptr,
                              static_cast<size_t>(text.data() + text.size() - parsed.ptr));
  int64_t scale = 1;
  if (unit.starts_with('K')) scale = 1 << 10;
  if (unit.starts_with('M')) scale = 1 << 20;
  return checked_mul(value, scale).value_or(0);
}

}  // namespace fathom
