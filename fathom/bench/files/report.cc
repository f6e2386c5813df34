#include "fathom/bench/files/report.h"

#include <charconv>
#include <cmath>
#include <map>

#include "fathom/bench/files/csv.h"
#include "fathom/bench/files/peaks_file.h"
#include "fathom/bench/roofline/analysis.h"
#include "fathom/bench/roofline/chart.h"
#include "fathom/bench/roofline/points.h"
#include "fathom/bench/summary/summary.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"
#include "fathom/text/figures.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

std::string rounded(const Figure& value) {
  return value ? three_digits(*value) : "-";
}

std::string dash_if_empty(const std::string& text) {
  return text.empty() ? "-" : text;
}

/// Text in a cell of a table: no bars, no line breaks.
std::string cell(std::string text) {
  for (char& c : text) {
    if (c == '|') c = '/';
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

void append_conditions(std::string& out, const BenchReport& report) {
  const BenchConditions& c = report.conditions;
  const Peaks& p = report.peaks;
  str_append(out, str_cat("fathom ", c.fathom_version, " (", c.commit, "), ", c.timestamp, "\n\n"));
  str_append(out, str_cat(c.host_cpu, ", ", c.host_isa, ", ", c.host_cores, " cores, ", c.threads,
                          " threads, ", format_memory(c.host_mem_bytes), "\n\n"));
  if (p.source.empty()) return;
  str_append(out, str_cat("Ceilings (", p.source, "): read ", rounded(p.read_gbps), " GB/s, copy ",
                          rounded(p.copy_gbps), " GB/s, f32 ", rounded(p.f32_gflops), " GFLOP/s (",
                          p.f32_unit, ")"));
  if (p.bf16_gflops > 0) {
    str_append(out, str_cat(", bf16 ", rounded(p.bf16_gflops), " GFLOP/s (", p.bf16_unit, ")"));
  }
  if (p.int8_gops > 0) {
    str_append(out, str_cat(", int8 ", rounded(p.int8_gops), " GOP/s (", p.int8_unit, ")"));
  }
  out += "\n\n";
}

/// "ok", or with how much of the output was compared: "ok (24 of 8192 rows)".
std::string status_text(const BenchRow& row) {
  const std::string_view name = row_status_name(row.status);
  return row.checked.empty() ? std::string(name) : str_cat(name, " (", row.checked, ")");
}

void append_table(std::string& out, const BenchReport& report) {
  out +=
      "| kernel | variant | op | case | status | us median | p10 | p90 | GB/s | TFLOP/s | bound | "
      "roof us | % of roof | note |\n"
      "|---|---|---|---|---|---:|---:|---:|---:|---:|---|---:|---:|---|\n";
  for (const BenchRow& r : report.rows) {
    for (const std::string& text :
         {r.kernel, dash_if_empty(r.variant), dash_if_empty(r.op), dash_if_empty(r.case_name),
          status_text(r), rounded(r.us_median), rounded(r.us_p10), rounded(r.us_p90),
          rounded(r.gbps), rounded(r.tflops), dash_if_empty(r.bound), rounded(r.roof_us),
          rounded(r.pct_of_roof), r.note}) {
      str_append(out, str_cat("| ", cell(text), text.empty() ? "" : " "));
    }
    out += "|\n";
  }
}

/// What this machine or the end of the run left out, by reason.
void append_left_out(std::string& out, const BenchReport& report) {
  if (report.absent.empty()) return;
  str_append(out, str_cat("\n## Left out (", report.absent.size(),
                          ")\n\n| kernel | variant | case | reason |\n|---|---|---|---|\n"));
  for (const AbsentRow& row : report.absent) {
    for (const std::string& text :
         {row.kernel, dash_if_empty(row.variant), dash_if_empty(row.case_name), row.note})
      str_append(out, str_cat("| ", cell(text), " "));
    out += "|\n";
  }
}

std::string write_markdown(const BenchReport& report) {
  std::string out = "# Kernel benchmark\n\n";
  append_conditions(out, report);
  append_table(out, report);
  str_append(out, str_cat("\n", report.count(RowStatus::kOk), " rows ok, ",
                          report.count(RowStatus::kWrong), " wrong, ",
                          report.count(RowStatus::kUnavailable), " unavailable, ",
                          report.count(RowStatus::kCrashed), " crashed\n"));
  append_left_out(out, report);
  return out;
}

/// A figure in the type of its column.
void write_figure(JsonWriter& json, const BenchField& field) {
  double value = 0;
  std::from_chars(field.text.data(), field.text.data() + field.text.size(), value);
  constexpr double kEnd = 0x1p63;  // of integers
  const bool whole = field.kind == FieldKind::kWhole && value == std::floor(value) &&
                     value >= -kEnd && value < kEnd;
  if (whole) {
    json.integer(static_cast<int64_t>(value));
  } else {
    json.number(value);
  }
}

void write_row(JsonWriter& json, const BenchRow& row) {
  json.begin_object();
  for (const BenchField& field : bench_fields(row)) {
    json.key(field.column);
    switch (field.kind) {
      case FieldKind::kText:
        json.string(field.text);
        break;
      case FieldKind::kFlag:
        json.boolean(field.text == "true");
        break;
      case FieldKind::kNumber:
      case FieldKind::kWhole:
        write_figure(json, field);
        break;
    }
  }
  json.end_object();
}

std::string write_json(const BenchReport& report) {
  JsonWriter json(JsonStyle::kIndented);
  json.begin_object();
  json.key("schema").string(kKernelBenchSchema);
  json.key("peaks");
  append_peaks(json, report.peaks);
  json.key("rows").begin_array();
  for (const BenchRow& row : report.rows)
    write_row(json, row);
  json.end_array();
  json.key("left_out").begin_array();
  for (const AbsentRow& row : report.absent) {
    json.begin_object();
    const std::pair<std::string_view, const std::string*> names[] = {{"kernel", &row.kernel},
                                                                     {"variant", &row.variant},
                                                                     {"case", &row.case_name},
                                                                     {"reason", &row.note}};
    for (const auto& [key, text] : names)
      json.key(key).string(*text);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.take() + "\n";
}

std::string write_json_lines(const BenchReport& report) {
  std::string out;
  for (const BenchRow& row : report.rows) {
    JsonWriter json;
    write_row(json, row);
    str_append(out, str_cat(json.take(), "\n"));
  }
  return out;
}

}  // namespace

std::string three_digits(double value) {
  const double size = std::abs(value);
  int decimals = 0;
  for (double limit = 100; decimals < 12 && size > 0 && size < limit; limit /= 10)
    ++decimals;
  return format_fixed(value, size == 0 ? 0 : decimals);
}

Result<BenchFormat> parse_bench_format(std::string_view name) {
  if (name == "md") return BenchFormat::kMarkdown;
  if (name == "csv") return BenchFormat::kCsv;
  if (name == "json") return BenchFormat::kJson;
  if (name == "jsonl") return BenchFormat::kJsonLines;
  return invalid_argument(
      str_cat("no output format '", name, "'; expected md, csv, json or jsonl"));
}

std::string write_bench_report(const BenchReport& report, BenchFormat format) {
  switch (format) {
    case BenchFormat::kMarkdown:
      return write_markdown(report);
    case BenchFormat::kCsv:
      return write_bench_csv(report.rows);
    case BenchFormat::kJson:
      return write_json(report);
    case BenchFormat::kJsonLines:
      return write_json_lines(report);
  }
  return {};
}

std::string bench_verdict_line(const BenchReport& report) {
  std::string out = str_cat(report.count(RowStatus::kOk), " of ", report.rows.size(), " rows ok");
  for (const RowStatus status : {RowStatus::kWrong, RowStatus::kUnavailable, RowStatus::kCrashed}) {
    const int64_t count = report.count(status);
    if (count > 0) str_append(out, str_cat(", ", count, " ", row_status_name(status)));
  }
  if (!report.absent.empty()) str_append(out, str_cat("; ", report.absent.size(), " left out"));
  return out;
}

bool all_rows_ok(const BenchReport& report) {
  const auto rows = static_cast<int64_t>(report.rows.size());
  return rows > 0 && report.count(RowStatus::kOk) == rows;
}

std::string write_bench_list(const std::vector<BenchPlanEntry>& plan) {
  std::string out;
  for (const BenchPlanEntry& entry : plan) {
    str_append(out, entry.kernel != nullptr ? entry.kernel->info.name : entry.asked);
    if (!entry.bench_case) {
      const std::string why =
          entry.kernel == nullptr ? "not among the kernels of this build" : entry.why;
      str_append(out,
                 str_cat(entry.case_name.empty() ? "" : "  ", entry.case_name, "  (", why, ")\n"));
      continue;
    }
    const CaseSpec& spec = entry.bench_case->spec;
    str_append(out, str_cat("  ", spec.name, "  ", spec.op, "  ", spec.phase, "\n"));
  }
  return out;
}

Status check_output_directory(const std::string& directory,
                              Overwrite overwrite,
                              std::initializer_list<std::string_view> files) {
  const PathKind kind = path_kind(directory);
  if (kind == PathKind::kMissing) return check_make_directories(directory);
  if (kind != PathKind::kDirectory) {
    return invalid_argument(str_cat("--out-dir ", directory, " is no directory"));
  }
  FATHOM_ASSIGN(const std::vector<std::string> names, list_directory(directory));
  if (!names.empty() && overwrite == Overwrite::kNo) {
    return invalid_argument(str_cat("--out-dir ", directory, " holds ", names.size(),
                                    " files already; --force overwrites those of a benchmark"));
  }
  for (const std::string_view name : files)
    FATHOM_TRY(check_writable(join_path(directory, name)));
  return {};
}

Status check_bench_directory(const std::string& directory, Overwrite overwrite) {
  return check_output_directory(directory, overwrite,
                                {kAllRowsFile, "all_kernels.json", "peaks.json", "roofline.md",
                                 "roofline.svg", "benchmark_summary.md"});
}

Status write_bench_directory(const BenchReport& report, const std::string& directory) {
  FATHOM_TRY(make_directories(directory));
  const auto write = [&](const std::string& name, const std::string& text) {
    return write_file(join_path(directory, name), text);
  };
  std::map<std::string, std::vector<BenchRow>> by_kernel;
  for (const BenchRow& row : report.rows)
    by_kernel[row.kernel].push_back(row);
  for (const auto& [kernel, rows] : by_kernel)
    FATHOM_TRY(write(kernel + ".csv", write_bench_csv(rows)));
  FATHOM_TRY(write(std::string(kAllRowsFile), write_bench_csv(report.rows)));
  FATHOM_TRY(write("all_kernels.json", write_json(report)));
  FATHOM_TRY(write("peaks.json", write_peaks(report.peaks)));
  if (!is_whole_reference_suite(report)) {
    if (!report.whole_suite || report.steps.empty())
      return write("benchmark_summary.md", write_markdown(report));
    FATHOM_ASSIGN(const std::string summary, write_preset_summary(report));
    return write("benchmark_summary.md", summary);
  }
  FATHOM_ASSIGN(const std::string summary, write_reference_summary(report));
  FATHOM_TRY(write("benchmark_summary.md", summary));
  Result<std::vector<RooflinePoint>> points = points_of_rows(report.rows, PointChoice::kAuto);
  if (points.status().code() == StatusCode::kNotFound) return {};
  if (!points.ok()) return std::move(points).status();
  const std::string title = str_cat("Roofline of ", report.conditions.device_name);
  FATHOM_TRY(write("roofline.md", write_analysis(*points, report.peaks, title, "roofline.svg")));
  const RooflineChart chart = make_chart(title, report.peaks, std::move(points).value());
  return write("roofline.svg", draw_chart(chart));
}

}  // namespace fathom
