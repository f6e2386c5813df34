#include "fathom/bench/files/compare.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "fathom/bench/files/report.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

std::string case_of(const BenchRow& row) {
  return str_cat(row.kernel, "/", row.case_name);
}

/// Cases of which a run has more than one row with a time: told apart by variant.
std::set<std::string> cases_with_variants(std::span<const BenchRow> rows) {
  std::set<std::string> seen;
  std::set<std::string> several;
  for (const BenchRow& row : rows) {
    if (row.status != RowStatus::kOk) continue;
    if (!seen.insert(str_cat(row.backend, " ", case_of(row))).second) several.insert(case_of(row));
  }
  return several;
}

/// Rows with a time by what they are; `names` keeps their order.
struct Run {
  std::map<std::string, double> us;
  std::vector<std::string> names;
};

Result<Run> read_run(std::span<const BenchRow> rows,
                     const std::set<std::string>& with_variants,
                     bool with_backend,
                     std::string_view which) {
  Run run;
  for (const BenchRow& row : rows) {
    if (row.status != RowStatus::kOk) continue;
    std::string name = case_of(row);
    if (with_variants.contains(name)) str_append(name, str_cat("/", row.variant));
    if (with_backend) str_append(name, str_cat(" on ", row.backend));
    if (!run.us.emplace(name, *row.us_median).second) {
      return corrupt(str_cat("the ", which, " run has two rows of ", name));
    }
    run.names.push_back(std::move(name));
  }
  return run;
}

std::set<std::string> backends_of(std::span<const BenchRow> rows) {
  std::set<std::string> out;
  for (const BenchRow& row : rows)
    out.insert(row.backend);
  return out;
}

std::vector<std::string> compare_conditions(const BenchConditions& a, const BenchConditions& b) {
  std::vector<std::string> out;
  const auto add = [&](std::string_view name, const std::string& x, const std::string& y) {
    if (x != y) out.push_back(str_cat(name, ": ", x, " against ", y));
  };
  add("host_cpu", a.host_cpu, b.host_cpu);
  add("host_isa", a.host_isa, b.host_isa);
  add("host_cores", str_cat(a.host_cores), str_cat(b.host_cores));
  add("device_name", a.device_name, b.device_name);
  add("threads", str_cat(a.threads), str_cat(b.threads));
  return out;
}

void append_names(std::string& out, std::string_view head, const std::vector<std::string>& names) {
  if (names.empty()) return;
  str_append(out, str_cat("\n", head, " (", names.size(), "):\n\n"));
  for (const std::string& name : names)
    str_append(out, str_cat("- ", name, "\n"));
}

}  // namespace

std::vector<const ComparedRow*> BenchComparison::slower_than(double share) const {
  std::vector<const ComparedRow*> out;
  for (const ComparedRow& row : rows)
    if (row.ratio() > 1 + share) out.push_back(&row);
  return out;
}

Result<BenchComparison> compare_bench(std::span<const BenchRow> before,
                                      std::span<const BenchRow> after) {
  std::set<std::string> with_variants = cases_with_variants(before);
  with_variants.merge(cases_with_variants(after));
  const bool with_backend = backends_of(before).size() > 1 || backends_of(after).size() > 1;
  FATHOM_ASSIGN(const Run first, read_run(before, with_variants, with_backend, "first"));
  FATHOM_ASSIGN(const Run second, read_run(after, with_variants, with_backend, "second"));
  BenchComparison out;
  if (!before.empty() && !after.empty()) {
    out.conditions = compare_conditions(before.front().conditions, after.front().conditions);
  }
  for (const std::string& name : second.names) {
    const auto same = first.us.find(name);
    if (same == first.us.end()) {
      out.only_after.push_back(name);
    } else {
      out.rows.push_back({name, same->second, second.us.at(name)});
    }
  }
  for (const std::string& name : first.names)
    if (!second.us.contains(name)) out.only_before.push_back(name);
  for (const BenchRow& row : after) {
    if (row.status == RowStatus::kOk) continue;
    out.failed_after.push_back(str_cat(case_of(row), " is ", row_status_name(row.status)));
  }
  if (out.rows.empty()) return not_found("no row with a time is in both runs");
  return out;
}

std::string write_comparison(const BenchComparison& comparison, double fail_slower) {
  std::string out = "# Benchmark comparison\n\n";
  if (!comparison.conditions.empty()) {
    out += "The runs are of different machines or settings; their times do not compare:\n\n";
    for (const std::string& text : comparison.conditions)
      str_append(out, str_cat("- ", text, "\n"));
    out += "\n";
  }
  MarkdownTable table({"row", "before us", "after us", "ratio", "verdict"});
  double logs = 0;
  for (const ComparedRow& row : comparison.rows) {
    logs += std::log(row.ratio());
    const bool slower = row.ratio() > 1 + fail_slower;
    const bool faster = row.ratio() < 1 / (1 + fail_slower);
    table.add({row.name, three_digits(row.before_us), three_digits(row.after_us),
               format_fixed(row.ratio(), 3),
               slower   ? "slower"
               : faster ? "faster"
                        : "same"});
  }
  out += table.str();
  append_names(out, "Only in the first run", comparison.only_before);
  append_names(out, "Only in the second run", comparison.only_after);
  append_names(out, "Failed in the second run", comparison.failed_after);
  const auto count = static_cast<double>(comparison.rows.size());
  str_append(out, str_cat("\n", comparison.rows.size(), " rows, ratio ",
                          format_fixed(std::exp(logs / count), 3), " (geometric mean), ",
                          comparison.slower_than(fail_slower).size(), " slower by more than ",
                          format_fixed(fail_slower * 100, 1), " %, ",
                          comparison.failed_after.size(), " failed in the second run\n"));
  return out;
}

Result<double> parse_share(std::string_view text) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view rest = text.substr(static_cast<size_t>(end.ptr - text.data()));
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  const bool in_percent = rest == "%";
  if (in_percent) value /= 100;
  const bool number = end.ec == std::errc{} && (rest.empty() || in_percent);
  if (number && std::isfinite(value) && value >= 0 && value <= 10) return value;
  return invalid_argument(
      str_cat("'", text.substr(0, 40), "' is no share; expected something like 5% or 0.05"));
}

}  // namespace fathom
