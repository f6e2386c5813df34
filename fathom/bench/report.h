// A benchmark report as text: tables for people, CSV and JSON for programs, a directory with all.
#pragma once

#include <string>

#include "fathom/bench/harness.h"

namespace fathom {

enum class BenchFormat { kMarkdown, kCsv, kJson, kJsonLines };

/// "md", "csv", "json", "jsonl". Errors: InvalidArgument with those names.
Result<BenchFormat> parse_bench_format(std::string_view name);

/// The whole report in that format. Numbers are rounded in Markdown and complete elsewhere.
std::string write_bench_report(const BenchReport& report, BenchFormat format);

/// The kernels and cases of a plan, one line each.
std::string write_bench_list(const std::vector<BenchPlanEntry>& plan);

/// Writes all_kernels.csv, one CSV a kernel, benchmark_summary.md and all_kernels.json into
/// `directory`, which is made if it is missing. Each file appears whole or not at all. Errors: Io.
Status write_bench_directory(const BenchReport& report, const std::string& directory);

}  // namespace fathom
