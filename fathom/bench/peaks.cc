#include "fathom/bench/peaks.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "fathom/base/checked_math.h"
#include "fathom/bench/peak_loops.h"
#include "fathom/device/memory.h"
#include "fathom/os/clock.h"

namespace fathom {
namespace {

/// Best of all passes of about `seconds`: units per nanosecond, that is giga-units a second.
template <class Pass>
double best_rate(double seconds, Pass pass) {
  double best = 0;
  const int64_t begin = monotonic_ns();
  do {
    const int64_t start = monotonic_ns();
    const double units = pass();
    const int64_t took = std::max<int64_t>(1, monotonic_ns() - start);
    best = std::max(best, units / static_cast<double>(took));
  } while (static_cast<double>(monotonic_ns() - begin) * 1e-9 < seconds);
  return best;
}

double compute_rate(ThreadPool& pool, const ComputeLoop& loop, double seconds) {
  if (loop.run == nullptr) return 0;
  // Ten milliseconds and more: a thread that sleeps may need half a millisecond to wake.
  constexpr int64_t kRounds = 8'000'000;
  std::vector<double> operations(static_cast<size_t>(pool.size()));
  return best_rate(seconds, [&] {
    pool.run([&](int thread, int) { operations[static_cast<size_t>(thread)] = loop.run(kRounds); });
    double total = 0;
    for (double n : operations)
      total += n;
    return total;
  });
}

/// A thread's part of a buffer, in whole lines of 64 bytes.
std::span<std::byte> part_of(const Buffer& buffer, int thread, int num_threads) {
  const RowRange lines = static_partition(buffer.size() / 64, thread, num_threads);
  return {buffer.data() + lines.begin * 64, static_cast<size_t>((lines.end - lines.begin) * 64)};
}

}  // namespace

double Peaks::compute_gflops(MathUnit unit) const {
  const double bf16 = bf16_gflops > 0 ? bf16_gflops : f32_gflops;
  switch (unit) {
    case MathUnit::kF32:
      return f32_gflops;
    case MathUnit::kBf16:
      return bf16;
    case MathUnit::kFp8:
      return fp8_gflops > 0 ? fp8_gflops : bf16;
    case MathUnit::kFp4:
      return fp4_gflops > 0 ? fp4_gflops : bf16;
    case MathUnit::kInt8:
      return int8_gops > 0 ? int8_gops : f32_gflops;
  }
  return 0;
}

std::string_view Peaks::compute_name(MathUnit unit) const {
  const std::string_view bf16 = bf16_gflops > 0 ? "bf16" : "f32";
  switch (unit) {
    case MathUnit::kF32:
      return "f32";
    case MathUnit::kBf16:
      return bf16;
    case MathUnit::kFp8:
      return fp8_gflops > 0 ? "fp8" : bf16;
    case MathUnit::kFp4:
      return fp4_gflops > 0 ? "fp4" : bf16;
    case MathUnit::kInt8:
      return int8_gops > 0 ? "int8" : "f32";
  }
  return "";
}

double Peaks::memory_gbps(int64_t bytes_read, int64_t bytes_written) const {
  return memory_name(bytes_read, bytes_written) == "copy" ? copy_gbps : read_gbps;
}

std::string_view Peaks::memory_name(int64_t bytes_read, int64_t bytes_written) const {
  return bytes_written * 4 >= bytes_read + bytes_written && bytes_written > 0 ? "copy" : "read";
}

namespace {

// Written once by the threads that will read it: pages exist, and on their node.
Result<Buffer> allocate_touched(ThreadPool& pool, int64_t bytes) {
  const int64_t cache = cpu_info().l3_bytes > 0 ? cpu_info().l3_bytes : int64_t{32} << 20;
  FATHOM_ASSIGN(Buffer buffer,
                Buffer::allocate(DeviceKind::kCpu,
                                 bytes > 0 ? bytes : std::max(8 * cache, int64_t{256} << 20),
                                 "the buffer of the bandwidth test"));
  pool.run([&](int thread, int num_threads) {
    const std::span<std::byte> part = part_of(buffer, thread, num_threads);
    std::memset(part.data(), 0x5A, part.size());
  });
  return buffer;
}

double read_rate(ThreadPool& pool, const Buffer& source, double seconds) {
  std::atomic<uint64_t> sink = 0;
  return best_rate(seconds, [&] {
    pool.run([&](int thread, int num_threads) {
      const std::span<std::byte> part = part_of(source, thread, num_threads);
      sink += read_words({reinterpret_cast<const uint64_t*>(part.data()), part.size() / 8});
    });
    return static_cast<double>(source.size());
  });
}

}  // namespace

Result<ReadProbe> ReadProbe::create(ThreadPool& pool, int64_t buffer_bytes) {
  FATHOM_ASSIGN(Buffer buffer, allocate_touched(pool, buffer_bytes));
  return ReadProbe(pool, std::move(buffer));
}

double ReadProbe::gbps(double seconds) const {
  return read_rate(*pool_, buffer_, seconds);
}

Result<Peaks> measure_peaks(ThreadPool& pool, Isa isa, const PeakOptions& options) {
  Peaks peaks;
  peaks.device = cpu_info().model;
  peaks.source = "measured";
  FATHOM_ASSIGN(const Buffer source, allocate_touched(pool, options.buffer_bytes));
  FATHOM_ASSIGN(const Buffer target, allocate_touched(pool, options.buffer_bytes));
  const auto bytes = static_cast<double>(source.size());
  peaks.read_gbps = read_rate(pool, source, options.seconds);
  peaks.copy_gbps = best_rate(options.seconds, [&] {
    pool.run([&](int thread, int num_threads) {
      const std::span<std::byte> from = part_of(source, thread, num_threads);
      const std::span<std::byte> to = part_of(target, thread, num_threads);
      std::memcpy(to.data(), from.data(), from.size());
    });
    return 2.0 * bytes;
  });
  const ComputeLoop f32 = f32_loop(isa);
  const ComputeLoop bf16 = bf16_loop(isa);
  const ComputeLoop int8 = int8_loop(isa);
  peaks.f32_unit = f32.instruction;
  peaks.bf16_unit = bf16.instruction;
  peaks.int8_unit = int8.instruction;
  peaks.f32_gflops = compute_rate(pool, f32, options.seconds);
  peaks.bf16_gflops = compute_rate(pool, bf16, options.seconds);
  peaks.int8_gops = compute_rate(pool, int8, options.seconds);
  return peaks;
}

namespace {

struct DataSheet {
  std::string_view name;
  double gbps, f32, bf16, fp8, fp4, int8;  // GB/s; TFLOP/s or TOP/s
};

// Dense rates of one GPU, from NVIDIA's data sheets (H100 SXM, H200 SXM, HGX B200, GB200 NVL72).
// The FP4 figure of Blackwell is the one that the reference benchmark's roofline uses.
constexpr DataSheet kDataSheets[] = {
    {"h100", 3350, 67, 989, 1979, 0, 1979},
    {"h200", 4800, 67, 989, 1979, 0, 1979},
    {"b200", 8000, 80, 2250, 4500, 9000, 4500},
    {"gb200", 8000, 80, 2250, 4500, 9000, 4500},
};

}  // namespace

std::vector<std::string> nominal_peak_names() {
  std::vector<std::string> names;
  for (const DataSheet& sheet : kDataSheets)
    names.emplace_back(sheet.name);
  return names;
}

Result<Peaks> nominal_peaks(std::string_view name) {
  for (const DataSheet& sheet : kDataSheets) {
    if (sheet.name != name) continue;
    Peaks peaks;
    peaks.device = sheet.name;
    peaks.source = "data sheet";
    peaks.read_gbps = sheet.gbps;
    peaks.copy_gbps = sheet.gbps;
    peaks.f32_gflops = sheet.f32 * 1e3;
    peaks.bf16_gflops = sheet.bf16 * 1e3;
    peaks.fp8_gflops = sheet.fp8 * 1e3;
    peaks.fp4_gflops = sheet.fp4 * 1e3;
    peaks.int8_gops = sheet.int8 * 1e3;
    return peaks;
  }
  std::string known;
  for (const DataSheet& sheet : kDataSheets) {
    str_append(known, str_cat(known.empty() ? "" : ", ", sheet.name));
  }
  return not_found(str_cat("no data sheet for device '", name, "'; known are ", known));
}

}  // namespace fathom
