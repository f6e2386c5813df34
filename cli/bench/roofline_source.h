// Where a roofline comes from: the rows of a benchmark, or the ops of a recorded run.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/roofline/points.h"

namespace fathom::cli {

struct RooflineSource {
  std::string title{};
  std::vector<RooflinePoint> points{};
  bool has_roofs = false;  ///< benchmark rows have; the ops of a trace get theirs from the ceilings
  std::vector<BenchRow> rows{};       ///< of a benchmark
  std::vector<std::string> failed{};  ///< rows without a time: "rmsnorm/t1 is wrong"
  std::string peaks_file{};           ///< beside the input, if there is one
};

/// Reads all_kernels.csv, of the directory of a benchmark too, or ops.csv of the directory of a
/// trace; calls of one op and kernel in a phase are one point. Errors: those of the readers;
/// InvalidArgument for a trace without times; NotFound for a directory that is neither.
Result<RooflineSource> read_roofline_source(const std::string& path, PointChoice choice);

/// What was measured with the rows: peaks.json beside them, else what the rows show; for a trace
/// without that file the ceilings of this machine, measured now.
Result<Peaks> measured_peaks_of(const RooflineSource& source, const GlobalFlags& globals);

}  // namespace fathom::cli
