// Benchmark rows as CSV. Oracles: what is accepted is written again as the same rows; failed rows
// stay failed and have no time, others have one; a run compared with itself has ratio 1; what is
// drawn from the rows is text without a NaN. Errors are short and name a line.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/bench/files/compare.h"
#include "fathom/bench/files/csv.h"
#include "fathom/bench/roofline/analysis.h"
#include "fathom/bench/roofline/chart.h"
#include "fathom/bench/roofline/points.h"

namespace {

using fathom::BenchRow;
using fathom::RowStatus;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check_round_trip(const std::vector<BenchRow>& rows) {
  const std::string text = fathom::write_bench_csv(rows);
  const auto again = fathom::read_bench_csv(text, "again");
  require(again.ok(), "what was written is not read");
  require(again->size() == rows.size(), "rows were lost");
  require(fathom::write_bench_csv(*again) == text, "written rows are no fixed point");
  for (size_t i = 0; i < rows.size(); ++i)
    require((*again)[i].status == rows[i].status, "a status changed");
}

void check_times(const std::vector<BenchRow>& rows) {
  for (const BenchRow& row : rows) {
    const bool ok = row.status == RowStatus::kOk;
    require(row.us_median.has_value() == ok, "a time where there must be none, or none");
    require(!ok || *row.us_median > 0, "a time that is none");
  }
}

void check_comparison(const std::vector<BenchRow>& rows) {
  const auto same = fathom::compare_bench(rows, rows);
  if (!same.ok()) return;
  require(same->only_before.empty() && same->only_after.empty(), "a run misses its own rows");
  require(same->slower_than(0).empty(), "a run is slower than itself");
  (void)fathom::write_comparison(*same, 0.05);
}

void check_roofline(const std::vector<BenchRow>& rows) {
  auto points = fathom::points_of_rows(rows, fathom::PointChoice::kAll);
  const auto peaks = fathom::peaks_of_rows(rows);
  if (!points.ok() || !peaks.ok()) return;
  fathom::hold_to(*peaks, *points);
  const std::string svg = fathom::draw_chart(fathom::make_chart("fuzz", *peaks, *points));
  require(svg.find("=\"nan") == std::string::npos, "a place that is no number");
  require(svg.find("=\"inf") == std::string::npos, "a place at infinity");
  (void)fathom::write_analysis(*points, *peaks, "fuzz", "");
  (void)fathom::write_points_csv(*points);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto rows = fathom::read_bench_csv(text, "input");
  if (!rows.ok()) {
    const std::string message = rows.status().message();
    require(rows.status().code() == fathom::StatusCode::kCorrupt, "another code than Corrupt");
    require(message.size() < 400, "a long message");
    require(message.find("input: line ") == 0, "a message without a line");
    return 0;
  }
  check_times(*rows);
  check_round_trip(*rows);
  check_comparison(*rows);
  check_roofline(*rows);
  return 0;
}
