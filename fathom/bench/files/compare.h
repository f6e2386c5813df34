// Two runs of a benchmark, row by row.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fathom/bench/row.h"

namespace fathom {

struct ComparedRow {
  std::string name{};  ///< "kernel/case", with the variant where a file has several
  double before_us = 0;
  double after_us = 0;

  /// Above 1: slower.
  double ratio() const { return after_us / before_us; }
};

struct BenchComparison {
  std::vector<ComparedRow> rows{};         ///< in the order of the second run
  std::vector<std::string> only_before{};  ///< rows with a time that the other run does not have
  std::vector<std::string> only_after{};
  /// Rows of the second run without a time because they failed there: "a/t1 is wrong".
  std::vector<std::string> failed_after{};
  std::vector<std::string> conditions{};  ///< what differs: "host_cpu: A against B"

  /// Rows whose ratio is above 1 + share.
  std::vector<const ComparedRow*> slower_than(double share) const;
};

/// Rows are the same if kernel, case, backend and shape are, and the variant where one run has
/// several of them. Errors: Corrupt for two rows of one run that are the same; NotFound if no row
/// is in both.
Result<BenchComparison> compare_bench(std::span<const BenchRow> before,
                                      std::span<const BenchRow> after);

/// A Markdown page: what differs between the machines, a ratio a row (the slower ones marked), the
/// rows of one side, those that failed in the second run, and the geometric mean of the ratios.
std::string write_comparison(const BenchComparison& comparison, double fail_slower);

/// "5%", "5 %" or "0.05" as a share. Errors: InvalidArgument for what is no number, negative or
/// above ten times.
Result<double> parse_share(std::string_view text);

}  // namespace fathom
