#include "fathom/bench/roofline/points.h"

#include <algorithm>
#include <map>

#include "fathom/bench/files/peaks_file.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/text/csv_records.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

constexpr double kLatencyUs = 1.0;  // as in add_roofline

bool is_reference(const BenchRow& row) {
  return row.case_name.starts_with("reference_");
}

/// The points of the published tables.
constexpr ReferencePoint kTables[] = {{"decode", 1, 1}, {"decode", 128, 1}, {"prefill", 1, 1024}};

std::string group_of(const BenchRow& row) {
  if (!is_reference(row) || !row.b || !row.s) return row.phase.empty() ? "all" : row.phase;
  const auto b = static_cast<int64_t>(*row.b);
  if (row.phase == "decode") return str_cat("decode B=", b);
  return str_cat(row.phase, " ", b, " x ", static_cast<int64_t>(*row.s));
}

/// Of a run that holds published rows, those of the three tables; of others every row.
bool is_chosen(const BenchRow& row, PointChoice choice, bool published) {
  if (choice == PointChoice::kAll || !published) return true;
  return std::any_of(std::begin(kTables), std::end(kTables), [&](const ReferencePoint& p) {
    return row.case_name == reference_case_name(row.op, p);
  });
}

/// The arithmetic of a row: what its ceiling names, or what its formats ask for.
MathUnit unit_of(const BenchRow& row) {
  const std::pair<std::string_view, MathUnit> names[] = {{"f32", MathUnit::kF32},
                                                         {"bf16", MathUnit::kBf16},
                                                         {"fp8", MathUnit::kFp8},
                                                         {"fp4", MathUnit::kFp4},
                                                         {"int8", MathUnit::kInt8}};
  for (const auto& [name, unit] : names)
    if (row.peak_used == name) return unit;
  if (row.dtype_w.empty()) return MathUnit::kF32;
  const bool codes = row.dtype_a != "bf16" && row.dtype_a != "f32" && row.dtype_a != "f16";
  if (codes && row.dtype_w == "nvfp4") return MathUnit::kFp4;
  if (codes && row.dtype_w == "i8") return MathUnit::kInt8;
  if (codes && (row.dtype_w == "e4m3" || row.dtype_w.starts_with("fp8"))) return MathUnit::kFp8;
  return row.dtype_w == "f32" ? MathUnit::kF32 : MathUnit::kBf16;
}

Result<RooflinePoint> point_of(const BenchRow& row) {
  const struct {
    std::string_view column;
    const Figure& value;
    double least, most;  // beyond which no machine is; 0 is allowed as well
  } needed[] = {{"flops", row.flops, 1, 1e30},
                {"bytes_model", row.bytes_model, 1, 1e30},
                {"roof_us", row.roof_us, 1e-9, 1e15},
                {"us_median", row.us_median, 1e-9, 1e15}};

  for (const auto& [column, value, least, most] : needed) {
    if (value && (*value == 0 || (*value >= least && *value <= most))) continue;
    return corrupt(str_cat(row.kernel, "/", row.case_name, ": column ", column, " is ",
                           value ? str_cat(*value) : "empty", ", expected 0 or ", least, " to ",
                           most, " in a row with status ok"));
  }
  return RooflinePoint{.kernel = row.kernel,
                       .op = row.op,
                       .label = row.case_name,
                       .group = group_of(row),
                       .tokens = row.m ? static_cast<int64_t>(*row.m) : 0,
                       .us = *row.us_median,
                       .flops = *row.flops,
                       .bytes = *row.bytes_model,
                       .unit = unit_of(row),
                       .copies = row.peak_used == "copy",
                       .roof_us = *row.roof_us,
                       .bound = row.bound};
}

}  // namespace

std::vector<std::string> groups_of(std::span<const RooflinePoint> points) {
  std::vector<std::string> groups;
  for (const RooflinePoint& p : points) {
    if (std::find(groups.begin(), groups.end(), p.group) == groups.end()) {
      groups.push_back(p.group);
    }
  }
  return groups;
}

void set_shares(std::vector<RooflinePoint>& points) {
  std::map<std::string, double> total;
  for (const RooflinePoint& p : points)
    total[p.group] += p.us;
  for (RooflinePoint& p : points)
    p.share = total[p.group] > 0 ? p.us / total[p.group] : 0;
}

Result<std::vector<RooflinePoint>> points_of_rows(std::span<const BenchRow> rows,
                                                  PointChoice choice) {
  const bool published = std::any_of(rows.begin(), rows.end(), is_reference);
  std::vector<RooflinePoint> points;
  for (const BenchRow& row : rows) {
    if (row.status != RowStatus::kOk || !is_chosen(row, choice, published)) continue;
    FATHOM_ASSIGN(RooflinePoint point, point_of(row));
    points.push_back(std::move(point));
  }
  if (points.empty()) return not_found("no row has a time: there is nothing to draw");
  set_shares(points);
  return points;
}

Result<Peaks> peaks_of_rows(std::span<const BenchRow> rows) {
  Peaks peaks;
  peaks.source = "measured";
  const std::pair<std::string_view, double Peaks::*> rates[] = {
      {"read", &Peaks::read_gbps},   {"copy", &Peaks::copy_gbps}, {"f32", &Peaks::f32_gflops},
      {"bf16", &Peaks::bf16_gflops}, {"fp8", &Peaks::fp8_gflops}, {"fp4", &Peaks::fp4_gflops},
      {"int8", &Peaks::int8_gops}};
  for (const BenchRow& row : rows) {
    if (peaks.device.empty()) peaks.device = row.conditions.device_name;
    if (!row.roof_us || *row.roof_us <= 0 || !row.flops || !row.bytes_model) continue;
    for (const auto& [name, rate] : rates) {
      if (row.peak_used != name) continue;
      const bool memory = name == "read" || name == "copy";
      const double found = (memory ? *row.bytes_model : *row.flops) / *row.roof_us * 1e-3;
      if (found >= kLeastRate && found <= kMostRate) peaks.*rate = found;
    }
  }
  if (peaks.read_gbps <= 0) peaks.read_gbps = peaks.copy_gbps;
  if (peaks.copy_gbps <= 0) peaks.copy_gbps = peaks.read_gbps;
  if (peaks.read_gbps > 0) return peaks;
  return not_found(
      "no row is bound by memory, so the rows do not show the rate of memory\nhint: give "
      "the ceilings with --peaks FILE or --device NAME");
}

void hold_to(const Peaks& peaks, std::vector<RooflinePoint>& points) {
  for (RooflinePoint& p : points) {
    const double gbps = p.copies ? peaks.copy_gbps : peaks.read_gbps;
    const double gflops = peaks.compute_gflops(p.unit);
    const double memory_us = gbps > 0 ? p.bytes / gbps * 1e-3 : 0;
    const double compute_us = gflops > 0 ? p.flops / gflops * 1e-3 : 0;
    p.roof_us = std::max(memory_us, compute_us);
    p.bound = p.roof_us < kLatencyUs ? "latency" : memory_us >= compute_us ? "memory" : "compute";
  }
}

std::string write_points_csv(std::span<const RooflinePoint> points) {
  std::string out =
      "group,kernel,op,case,flops,bytes,us,ai,gflops,gbps,roof_us,pct_of_roof,bound,share\n";
  for (const RooflinePoint& p : points) {
    append_csv_record(
        out, {p.group, p.kernel, p.op, p.label, str_cat(p.flops), str_cat(p.bytes), str_cat(p.us),
              str_cat(p.intensity()), str_cat(p.gflops()), str_cat(p.gbps()), str_cat(p.roof_us),
              str_cat(p.percent()), p.bound, str_cat(p.share)});
  }
  return out;
}

std::string write_points_json(std::span<const RooflinePoint> points, const Peaks& peaks) {
  JsonWriter json(JsonStyle::kIndented);
  json.begin_object().key("schema").string("fathom.roofline/1").key("peaks");
  append_peaks(json, peaks);
  json.key("points").begin_array();
  for (const RooflinePoint& p : points) {
    json.begin_object();
    const std::pair<std::string_view, const std::string*> names[] = {{"group", &p.group},
                                                                     {"kernel", &p.kernel},
                                                                     {"op", &p.op},
                                                                     {"case", &p.label},
                                                                     {"bound", &p.bound}};
    for (const auto& [key, text] : names)
      json.key(key).string(*text);
    const std::pair<std::string_view, double> figures[] = {
        {"flops", p.flops},     {"bytes", p.bytes},     {"us", p.us},
        {"ai", p.intensity()},  {"gflops", p.gflops()}, {"gbps", p.gbps()},
        {"roof_us", p.roof_us}, {"share", p.share},     {"pct_of_roof", p.percent()}};
    for (const auto& [key, value] : figures)
      json.key(key).number(value);
    json.end_object();
  }
  json.end_array().end_object();
  return json.take() + "\n";
}

}  // namespace fathom
