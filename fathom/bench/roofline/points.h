// What a roofline is drawn from: calls with their FLOPs, bytes and times, held against ceilings.
// Points come from benchmark rows or from the ops of a recorded run.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/row.h"

namespace fathom {

struct RooflinePoint {
  std::string kernel{};
  std::string op{};
  std::string label{};  ///< the case, or the scope of an op
  std::string group{};  ///< what shares of time are taken of: "decode B=1", "prefill"
  int64_t tokens = 0;   ///< of the call; 0: not known
  double us = 0;        ///< of all calls of a group together
  double flops = 0;
  double bytes = 0;
  MathUnit unit = MathUnit::kF32;
  bool copies = false;  ///< a quarter or more of the bytes is written
  double roof_us = 0;
  std::string bound{};  ///< "memory", "compute" or "latency"
  double share = 0;     ///< of the time of its group, 0 to 1

  /// FLOP a byte; 0 for what only moves.
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }

  double gflops() const { return us > 0 ? flops / us * 1e-3 : 0; }

  double gbps() const { return us > 0 ? bytes / us * 1e-3 : 0; }

  /// Of the roof, in percent.
  double percent() const { return us > 0 ? roof_us / us * 100 : 0; }
};

/// Which rows become points.
enum class PointChoice {
  kAuto,  ///< of the suite reference23: decode of 1 and 128 sequences and prefill of 1 x 1024
  kAll,
};

/// Points of the rows with a time, and their shares. Errors: NotFound if there are none; Corrupt
/// for a row with a time and without FLOPs, bytes or roof.
Result<std::vector<RooflinePoint>> points_of_rows(std::span<const BenchRow> rows,
                                                  PointChoice choice);

/// The ceilings that the rows were held against, as far as a row shows them: those it used. Errors:
/// NotFound if no row shows a rate of memory.
Result<Peaks> peaks_of_rows(std::span<const BenchRow> rows);

/// Holds points against other ceilings than their rows were: roofs and bounds become those of
/// `peaks`.
void hold_to(const Peaks& peaks, std::vector<RooflinePoint>& points);

/// Sets `share` of every point.
void set_shares(std::vector<RooflinePoint>& points);

/// Groups in the order in which they appear.
std::vector<std::string> groups_of(std::span<const RooflinePoint> points);

/// CSV and JSON of points, for other programs to draw.
std::string write_points_csv(std::span<const RooflinePoint> points);
std::string write_points_json(std::span<const RooflinePoint> points, const Peaks& peaks);

}  // namespace fathom
