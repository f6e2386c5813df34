// Calls of products with quantised operands, for tests.
#pragma once

#include <cstring>
#include <limits>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/kernels/core/launch.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Threads and scratch memory, on one variant.
struct Caller {
  ThreadPool pool{2, PinThreads::kNo};
  Arena scratch{Buffer::allocate(DeviceKind::kCpu, 32 << 20, "test").value()};
  Pins pins;
  Exec ex;

  explicit Caller(std::string_view variant = "") {
    if (!variant.empty()) pins.emplace_back("product", variant);
    ex.kernels = &cpu_kernels();
    ex.pool = &pool;
    ex.num_threads = 2;
    ex.scratch = &scratch;
    ex.pins = &pins;
  }

  template <class K>
  Status run(const typename K::Args& args) {
    return launch<K>(ex, "product", args);
  }
};

/// The variants of a kernel that take these arguments.
template <class K>
std::vector<std::string_view> variants_for(const typename K::Args& args) {
  std::vector<std::string_view> names;
  for (const Variant<K>& v : cpu_kernels().table<K>()) {
    Caller caller(v.name);
    if (accepts<K>(caller.ex, "product", args)) names.push_back(v.name);
  }
  return names;
}

/// `count` random bytes.
inline std::vector<uint8_t> random_bytes(size_t count, uint64_t seed) {
  std::vector<uint8_t> out(count);
  Rng rng(seed, 0);
  for (uint8_t& byte : out)
    byte = static_cast<uint8_t>(rng.next_u64() >> 40);
  return out;
}

/// The same without the NaN of E4M3.
inline std::vector<uint8_t> random_e4m3(size_t count, uint64_t seed) {
  std::vector<uint8_t> out = random_bytes(count, seed);
  for (uint8_t& byte : out)
    byte = static_cast<uint8_t>((byte & 0x7F) == 0x7F ? byte ^ 4 : byte);
  return out;
}

inline std::vector<float> random_floats(size_t count, uint64_t seed) {
  std::vector<float> out(count);
  Rng rng(seed, 0);
  for (float& value : out)
    value = rng.next_normal();
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace fathom
