// summary.csv: a recording added up by phase, op and kernel.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fathom/bench/machine/peaks.h"
#include "fathom/report/recording.h"

namespace fathom {

inline constexpr std::string_view kSummarySchema = "fathom.trace.summary/1";

enum class SummaryKind : uint8_t {
  kPhase,   ///< all calls of a phase; `name` is the phase
  kOp,      ///< calls of one op that ran one kernel
  kKernel,  ///< calls of one kernel
};

/// Times are of timed recordings only; shares are of the phase.
struct SummaryRow {
  SummaryKind kind = SummaryKind::kPhase;
  std::string phase;
  std::string name;
  std::string kernel;
  std::string variant;
  int64_t calls = 0;
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  double weight_bytes = 0;
  double cache_bytes = 0;
  double activation_bytes = 0;
  double share_of_bytes = 0;
  std::optional<double> total_us;
  std::optional<double> share_of_time;
  std::optional<double> avg_us, p50_us, p99_us;
  std::optional<double> pct_of_roof;  ///< least time by the ceilings, of the time taken
  // Of a phase alone: its steps by the clock, and what of that was no kernel. On a GPU the step is
  // one graph, and its kernels one by one take longer: the gap is below 0.
  std::optional<double> steps, wall_us, gap_us;
  bool as_graphs = false;

  double bytes() const { return bytes_read + bytes_written; }
};

/// Phases first, then ops, then kernels, each by falling time (or bytes, of a dry run). `peaks`
/// may be null: then there is no share of a roof.
std::vector<SummaryRow> summarise(const Recording& recording, const Peaks* peaks);

std::string write_summary_csv(const std::vector<SummaryRow>& rows, const Recording& recording);

/// The same rows as JSON: {"schema", "model", "level", "rows"}; what a row does not have is null.
std::string write_summary_json(const std::vector<SummaryRow>& rows, const Recording& recording);

/// For the terminal: "decode: 4 steps, 1.9 ms each, 97.6 % of it in kernels", a line a phase; on a
/// GPU "1.9 ms each as one graph, 2.3 ms op by op with a mark after each".
std::string summary_lines(const std::vector<SummaryRow>& rows);

/// The least microseconds the ceilings allow for that work.
double roof_us(const Cost& cost, const Peaks& peaks);

}  // namespace fathom
