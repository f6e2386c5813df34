#include "fathom/bench/machine/peaks.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "fathom/base/checked_math.h"
#include "fathom/bench/machine/peak_loops.h"
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
  // About a millisecond: long enough to start all threads, short enough that some passes have the
  // machine to themselves. The threads spin from one pass to the next.
  constexpr int64_t kRounds = 1'000'000;
  std::vector<double> operations(static_cast<size_t>(pool.size()));
  return best_rate(seconds, [&] {
    pool.run([&](int thread, int) { operations[static_cast<size_t>(thread)] = loop.run(kRounds); });
    double total = 0;
    for (double n : operations)
      total += n;
    return total;
  });
}

/// Part `part` of `parts`, in whole lines of 64 bytes.
std::span<std::byte> cut(std::span<std::byte> bytes, int64_t part, int64_t parts) {
  const RowRange lines = static_partition(static_cast<int64_t>(bytes.size()) / 64,
                                          static_cast<int>(part), static_cast<int>(parts));
  return bytes.subspan(static_cast<size_t>(lines.begin * 64),
                       static_cast<size_t>((lines.end - lines.begin) * 64));
}

std::span<std::byte> bytes_of(const Buffer& buffer) {
  return {buffer.data(), static_cast<size_t>(buffer.size())};
}

/// Walks through a buffer slice by slice, in a circle. A slice takes about a millisecond: some have
/// the machine to themselves. It comes back when everything else has been read.
class Slices {
 public:
  Slices(const Buffer& buffer, int64_t slice_bytes)
      : count_(std::max<int64_t>(1, buffer.size() / slice_bytes)) {}

  void advance() { at_ = (at_ + 1) % count_; }

  std::span<std::byte> of(const Buffer& buffer, int thread, int num_threads) const {
    return cut(cut(bytes_of(buffer), at_, count_), thread, num_threads);
  }

 private:
  int64_t count_;
  int64_t at_ = 0;
};

constexpr int64_t kSliceBytes = 32 << 20;

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

/// What comes round after twice a cache is no longer in it. More than that is for caches that
/// other guests of the machine leave alone, as far as it costs little: caches have up to 1 GB.
int64_t buffer_bytes(int64_t asked) {
  if (asked > 0) return asked;
  const int64_t cache = cpu_info().l3_bytes > 0 ? cpu_info().l3_bytes : int64_t{32} << 20;
  const int64_t most = std::max(2 * cache, int64_t{1} << 30);
  return std::clamp(8 * cache, int64_t{256} << 20, most);
}

Result<Buffer> allocate(int64_t bytes) {
  return Buffer::allocate(DeviceKind::kCpu, buffer_bytes(bytes),
                          "the buffer of the bandwidth test");
}

// Written once by the threads that will read it: pages exist, and on their node.
void touch(ThreadPool& pool, const Buffer& buffer) {
  pool.run([&](int thread, int num_threads) {
    const std::span<std::byte> part = cut(bytes_of(buffer), thread, num_threads);
    std::memset(part.data(), 0x5A, part.size());
  });
}

double read_rate(ThreadPool& pool, const Buffer& source, double seconds) {
  std::atomic<uint64_t> sink = 0;
  Slices slices(source, kSliceBytes);
  return best_rate(seconds, [&] {
    std::atomic<int64_t> bytes = 0;
    pool.run([&](int thread, int num_threads) {
      const std::span<std::byte> part = slices.of(source, thread, num_threads);
      sink += read_words({reinterpret_cast<const uint64_t*>(part.data()), part.size() / 8});
      bytes += static_cast<int64_t>(part.size());
    });
    slices.advance();
    return static_cast<double>(bytes);
  });
}

/// Bytes read plus bytes written. Large copies store past the caches and small ones through them;
/// which is faster is the machine's.
double copy_rate(ThreadPool& pool, const Buffer& source, const Buffer& target, double seconds) {
  double best = 0;
  for (const int64_t slice_bytes : {kSliceBytes, 8 * kSliceBytes}) {
    Slices slices(source, slice_bytes);
    best = std::max(best, best_rate(seconds / 2, [&] {
                      std::atomic<int64_t> bytes = 0;
                      pool.run([&](int thread, int num_threads) {
                        const auto from = slices.of(source, thread, num_threads);
                        const auto to = slices.of(target, thread, num_threads);
                        std::memcpy(to.data(), from.data(), from.size());
                        bytes += static_cast<int64_t>(from.size());
                      });
                      slices.advance();
                      return 2.0 * static_cast<double>(bytes);
                    }));
  }
  return best;
}

}  // namespace

Result<ReadProbe> ReadProbe::create(ThreadPool& pool, int64_t buffer_bytes) {
  FATHOM_ASSIGN(Buffer buffer, allocate(buffer_bytes));
  touch(pool, buffer);
  return ReadProbe(pool, std::move(buffer));
}

double ReadProbe::gbps(double seconds) const {
  return read_rate(*pool_, buffer_, seconds);
}

Result<PeakMeter> PeakMeter::create(Isa isa, const PeakOptions& options) {
  PeakMeter meter;
  meter.isa_ = isa;
  meter.best_.device = cpu_info().model;
  meter.best_.source = "measured";
  meter.best_.f32_unit = f32_loop(isa).instruction;
  meter.best_.bf16_unit = bf16_loop(isa).instruction;
  meter.best_.int8_unit = int8_loop(isa).instruction;
  FATHOM_ASSIGN(meter.source_, allocate(options.buffer_bytes));
  FATHOM_ASSIGN(meter.target_, allocate(options.buffer_bytes));
  return meter;
}

void PeakMeter::measure(ThreadPool& pool, double seconds) {
  if (!touched_) {
    touch(pool, source_);
    touch(pool, target_);
    touched_ = true;
  }
  const auto keep = [](double& best, double found) { best = std::max(best, found); };
  keep(best_.read_gbps, read_rate(pool, source_, seconds));
  keep(best_.copy_gbps, copy_rate(pool, source_, target_, seconds));
  keep(best_.f32_gflops, compute_rate(pool, f32_loop(isa_), seconds));
  keep(best_.bf16_gflops, compute_rate(pool, bf16_loop(isa_), seconds));
  keep(best_.int8_gops, compute_rate(pool, int8_loop(isa_), seconds));
}

Result<Peaks> measure_peaks(ThreadPool& pool, Isa isa, const PeakOptions& options) {
  FATHOM_ASSIGN(PeakMeter meter, PeakMeter::create(isa, options));
  meter.measure(pool, options.seconds);
  return meter.best();
}

double measure_plain_gflops(ThreadPool& pool) {
  constexpr double kSeconds = 0.02;
  return compute_rate(pool, plain_loop(), kSeconds);
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
  return invalid_argument(str_cat("no data sheet for device '", name, "'; known are ", known));
}

}  // namespace fathom
