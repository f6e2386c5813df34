// Ceilings of a machine: what a roofline is drawn from. Measured in the same run as the figures
// they are held against, or taken from a data sheet.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/memory.h"
#include "fathom/os/cpu_info.h"
#include "fathom/os/thread_pool.h"
#include "fathom/trace/cost.h"

namespace fathom {

/// Rates of machines lie between these, in GB/s and GFLOP/s; what does not is a mistake of a file.
inline constexpr double kLeastRate = 1e-6;
inline constexpr double kMostRate = 1e15;

/// Rates of a whole device (all threads of the run). 0: the device has no such unit.
struct Peaks {
  std::string device{};  ///< "h200", or the processor's name
  std::string source{};  ///< "measured", "data sheet", or what is of which
  double read_gbps = 0;
  double copy_gbps = 0;  ///< bytes read plus bytes written
  double f32_gflops = 0;
  double bf16_gflops = 0;
  double fp8_gflops = 0;
  double fp4_gflops = 0;
  double int8_gops = 0;
  std::string f32_unit{}, bf16_unit{}, int8_unit{};  ///< instructions of measured rates

  /// The rate of a unit, or of the unit that stands in for one the device lacks: FP4 and FP8
  /// weights become bf16, bf16 becomes float32. GFLOP/s.
  double compute_gflops(MathUnit unit) const;

  /// The name of that rate: "bf16".
  std::string_view compute_name(MathUnit unit) const;

  /// The rate that bounds traffic of this mix: reading alone, or copying where a quarter or more
  /// is written. GB/s.
  double memory_gbps(int64_t bytes_read, int64_t bytes_written) const;
  std::string_view memory_name(int64_t bytes_read, int64_t bytes_written) const;
};

struct PeakOptions {
  int64_t buffer_bytes = 0;  ///< read by all threads together; 0: at least twice the last cache
  double seconds = 0.25;     ///< for each rate
};

/// Measures the read rate again and again. Where guests share a host's memory the rate moves by a
/// factor of two within a minute, so a share of it needs a reading right before and after.
class ReadProbe {
 public:
  /// Errors: OutOfMemory.
  static Result<ReadProbe> create(ThreadPool& pool, int64_t buffer_bytes = 0);

  /// Best of all passes in about `seconds`. GB/s.
  double gbps(double seconds) const;

 private:
  ReadProbe(ThreadPool& pool, Buffer buffer) : pool_(&pool), buffer_(std::move(buffer)) {}

  ThreadPool* pool_;
  Buffer buffer_;
};

/// Measures every rate of a machine again and again and keeps the best of each: what something else
/// on the machine takes for a minute is then not taken for its ceiling.
class PeakMeter {
 public:
  /// Errors: OutOfMemory.
  static Result<PeakMeter> create(Isa isa, const PeakOptions& options);

  /// Measures all rates on the threads of `pool`, each for about `seconds`. The buffers are first
  /// touched by the pool of the first call.
  void measure(ThreadPool& pool, double seconds);

  const Peaks& best() const { return best_; }

 private:
  PeakMeter() = default;

  Isa isa_ = Isa::kPortable;
  Peaks best_;
  Buffer source_;
  Buffer target_;
  bool touched_ = false;
};

/// Measures every rate of this machine on the threads of `pool`, best of all passes.
Result<Peaks> measure_peaks(ThreadPool& pool, Isa isa, const PeakOptions& options);

/// The rate of plain loops, in which additions wait for each other: about what kernels for every
/// processor reach, far below f32_gflops.
double measure_plain_gflops(ThreadPool& pool);

/// The data sheet of a GPU by name ("h200", "h100", "b200", "gb200"): dense rates, without
/// sparsity. Errors: InvalidArgument with the known names.
Result<Peaks> nominal_peaks(std::string_view name);

/// Names that nominal_peaks knows.
std::vector<std::string> nominal_peak_names();

}  // namespace fathom
