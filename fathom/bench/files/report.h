// A benchmark report as text: tables for people, CSV and JSON for programs, a directory with all.
#pragma once

#include <initializer_list>
#include <string>

#include "fathom/bench/harness.h"

namespace fathom {

enum class BenchFormat { kMarkdown, kCsv, kJson, kJsonLines };

/// "md", "csv", "json", "jsonl". Errors: InvalidArgument with those names.
Result<BenchFormat> parse_bench_format(std::string_view name);

/// The whole report in that format. Numbers are rounded in Markdown and complete elsewhere.
std::string write_bench_report(const BenchReport& report, BenchFormat format);

/// "12 of 15 rows ok, 1 wrong, 2 crashed": counts that are not 0.
std::string bench_verdict_line(const BenchReport& report);

/// True if there are rows and each is ok: what exit code 0 of a benchmark says.
bool all_rows_ok(const BenchReport& report);

/// The kernels and cases of a plan, one line each.
std::string write_bench_list(const std::vector<BenchPlanEntry>& plan);

/// Three significant digits without an exponent, for tables: "0.00123", "12.3", "4567".
std::string three_digits(double value);

enum class Overwrite { kNo, kYes };

/// Errors: InvalidArgument if something is at `directory` already and must not be overwritten; Io
/// if these files in it cannot be written. To be asked before a run of minutes; leaves nothing
/// behind.
Status check_output_directory(const std::string& directory,
                              Overwrite overwrite,
                              std::initializer_list<std::string_view> files);

/// The same for the files of write_bench_directory.
Status check_bench_directory(const std::string& directory, Overwrite overwrite);

/// Writes all_kernels.csv, one CSV a kernel, all_kernels.json, peaks.json and benchmark_summary.md
/// into `directory`, which is made if it is missing; of the whole suite reference23, if a row has a
/// time, also roofline.md and roofline.svg. What a run that ended early has no row of is named in
/// the summary. Each file appears whole or not at all. Errors: Io.
Status write_bench_directory(const BenchReport& report, const std::string& directory);

}  // namespace fathom
