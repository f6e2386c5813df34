// One line of a kernel benchmark, and the conditions it was taken under.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom {

inline constexpr std::string_view kKernelBenchSchema = "fathom.bench.kernel/1";

/// Only `ok` rows have times.
enum class RowStatus {
  kOk,
  kWrong,        ///< the result missed its gate; the row carries the measures and no time
  kUnavailable,  ///< no such kernel here, no variant takes the shape, or the memory is missing
  kCrashed,      ///< the process that ran it ended (kernels that run in a child process)
};

std::string_view row_status_name(RowStatus status);
Result<RowStatus> parse_row_status(std::string_view name);

/// The machine and the build of a run; the same in all of its rows.
struct BenchConditions {
  std::string fathom_version{};
  std::string commit{};
  std::string timestamp{};  ///< UTC, "2026-01-31T12:00:00Z"
  std::string host_cpu{};
  std::string host_isa{};
  int64_t host_cores = 0;
  int64_t host_mem_bytes = 0;
  std::string device_name{};  ///< of the backend; the processor for "cpu"
  std::string backend = "cpu";
  std::string arch{};  ///< instruction set of the processor, or "sm_90"
  int64_t threads = 0;
};

/// A figure that may be missing prints as an empty field.
using Figure = std::optional<double>;

struct BenchRow {
  BenchConditions conditions{};

  std::string kernel{};
  std::string reference_name{};  ///< in the reference stack, or empty
  std::string variant{};
  std::string case_name{};
  std::string op{};
  std::string layer_kind{};
  std::string phase{};
  std::string backend{};
  std::string arch{};
  RowStatus status = RowStatus::kUnavailable;

  std::string shape{};  ///< axes of the signature, "T=1;D=7168"
  Figure b{}, s{}, kv{}, m{}, n{}, k{}, e{}, topk{}, h{}, d{};
  std::string dtype_w{};
  std::string dtype_a{};
  std::string dtype_out{};
  std::string scale_fmt{};

  Figure reps{};
  Figure us_median{}, us_mean{}, us_min{}, us_max{}, us_p10{}, us_p90{};

  Figure flops{};        ///< of the equation
  Figure bytes_model{};  ///< compulsory traffic
  Figure tflops{}, gbps{};

  Figure ai{};           ///< FLOP a byte
  std::string bound{};   ///< "memory", "compute" or "latency"
  Figure roof_us{};      ///< the least time the ceilings allow
  Figure pct_of_roof{};  ///< roof_us / us_median
  std::string peak_used{};

  Figure max_abs{}, max_rel{}, cos{}, sqnr_db{};
  std::string passed{};  ///< "true", "false", or empty where nothing was checked
  std::string budget{};
  std::string checked{};  ///< "24 of 8192 rows"; empty where all was compared, or nothing

  Figure clock_mhz{}, mem_mhz{}, power_w{}, temp_c{};
  std::string note{};  ///< "unstable", "warm", why a row has no figure
};

}  // namespace fathom
