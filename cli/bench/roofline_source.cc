#include "cli/bench/roofline_source.h"

#include <map>
#include <tuple>

#include "cli/io/progress.h"
#include "fathom/api/open.h"
#include "fathom/bench/files/csv.h"
#include "fathom/bench/files/peaks_file.h"
#include "fathom/os/file.h"
#include "fathom/report/files/ops_csv.h"

namespace fathom::cli {
namespace {

constexpr int64_t kMostBytes = 256 << 20;
constexpr std::string_view kOpsFile = "ops.csv";

/// The part of "model/layer 3/mlp/shared_experts" that tells ops of one name apart, whatever the
/// layer.
std::string_view last_scope(std::string_view scope) {
  scope = scope.substr(scope.rfind('/') + 1);
  return scope.substr(0, scope.find_first_of(" 0123456789"));
}

MathUnit unit_named(std::string_view name) {
  for (MathUnit unit : {MathUnit::kBf16, MathUnit::kFp8, MathUnit::kFp4, MathUnit::kInt8})
    if (math_unit_name(unit) == name) return unit;
  return MathUnit::kF32;
}

Result<std::vector<RooflinePoint>> points_of_ops(const std::vector<OpRow>& ops,
                                                 const std::string& path) {
  std::vector<RooflinePoint> points;
  std::map<std::tuple<std::string, std::string_view, std::string, std::string>, size_t> places;
  for (const OpRow& op : ops) {
    if (!op.us) continue;
    const auto [place, is_new] =
        places.try_emplace({op.phase, last_scope(op.scope), op.op, op.kernel}, points.size());
    if (is_new) {
      points.push_back({.kernel = op.kernel,
                        .op = op.op,
                        .label = op.scope,
                        .group = op.phase,
                        .unit = unit_named(op.unit),
                        .copies = op.bytes_written * 4 >= op.bytes_read + op.bytes_written &&
                                  op.bytes_written > 0});
    }
    RooflinePoint& point = points[place->second];
    point.us += *op.us;
    point.flops += op.flops;
    point.bytes += op.bytes_read + op.bytes_written;
  }
  if (points.empty()) {
    return invalid_argument(str_cat(path,
                                    ": no op has a time; a dry run has none, record a real "
                                    "one with `fathom trace MODEL -p TEXT --out-dir DIR`"));
  }
  set_shares(points);
  return points;
}

Result<RooflineSource> read_trace(const std::string& directory) {
  const std::string path = join_path(directory, kOpsFile);
  FATHOM_ASSIGN(const std::string text, read_file(path, kMostBytes));
  FATHOM_ASSIGN(const std::vector<OpRow> ops, read_ops_csv(text, path));
  RooflineSource source;
  source.title = ops.empty() ? directory : str_cat("a run of ", ops.front().model);
  FATHOM_ASSIGN(source.points, points_of_ops(ops, path));
  source.peaks_file = join_path(directory, "peaks.json");
  return source;
}

Result<RooflineSource> read_benchmark(const std::string& path, PointChoice choice) {
  FATHOM_ASSIGN(const std::string text, read_file(path, kMostBytes));
  RooflineSource source;
  FATHOM_ASSIGN(source.rows, read_bench_csv(text, path));
  Result<std::vector<RooflinePoint>> points = points_of_rows(source.rows, choice);
  if (!points.ok()) return std::move(points).status().add_context(path);
  source.points = std::move(points).value();
  for (const BenchRow& row : source.rows) {
    if (row.status == RowStatus::kOk) continue;
    source.failed.push_back(
        str_cat(row.kernel, "/", row.case_name, " is ", row_status_name(row.status)));
  }
  source.has_roofs = true;
  source.title = str_cat("kernels on ", source.rows.front().conditions.device_name);
  source.peaks_file = join_path(parent_directory(path), "peaks.json");
  return source;
}

}  // namespace

Result<RooflineSource> read_roofline_source(const std::string& path, PointChoice choice) {
  const std::string rows = bench_rows_path(path);
  if (path_kind(rows) != PathKind::kDirectory) return read_benchmark(rows, choice);
  if (path_kind(join_path(path, kOpsFile)) == PathKind::kFile) return read_trace(path);
  return not_found(str_cat(path, " holds neither ", kAllRowsFile, " of a benchmark nor ", kOpsFile,
                           " of a trace, expected what their --out-dir wrote"));
}

Result<Peaks> measured_peaks_of(const RooflineSource& source, const GlobalFlags& globals) {
  if (path_kind(source.peaks_file) == PathKind::kFile) {
    FATHOM_ASSIGN(const std::string text, read_file(source.peaks_file, 1 << 20));
    return read_peaks(text, source.peaks_file);
  }
  if (source.has_roofs) return peaks_of_rows(source.rows);
  FATHOM_ASSIGN(const Isa isa, usable_isa(globals.engine));
  FATHOM_ASSIGN(const auto pool,
                ThreadPool::create(thread_count(globals.engine), PinThreads::kYes));
  Progress progress("measuring memory and arithmetic", "", globals.quiet);
  progress.update(0, 0, "a few seconds");
  return measure_peaks(*pool, isa, {.seconds = 0.5});
}

}  // namespace fathom::cli
