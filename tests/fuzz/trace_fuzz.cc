// ops.csv of traces. Oracles: what is accepted is written and read again as the same rows; a trace
// does not differ from itself; every figure is finite.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "fathom/report/files/ops_csv.h"
#include "fathom/report/files/trace_diff.h"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto rows = fathom::read_ops_csv(text, "ops.csv");
  if (!rows.ok()) {
    require(rows.status().message().find("line ") != std::string::npos, "message without a line");
    return 0;
  }
  for (const fathom::OpRow& row : *rows) {
    require(std::isfinite(row.flops) && row.flops >= 0, "flops");
    require(row.us.has_value() == (row.level != fathom::TraceLevel::kDry), "time");
    require(row.written.size() == row.statistics.size(), "statistics");
  }
  const std::string written = fathom::write_ops_csv(*rows);
  const auto again = fathom::read_ops_csv(written, "ops.csv");
  require(again.ok(), "what was written is refused");
  require(fathom::write_ops_csv(*again) == written, "rows change");
  const fathom::DiffOptions exact{.tolerance = 0, .fail_slower = 0};
  require(!fathom::diff_traces(*rows, *again, exact).failed(exact), "a trace differs from itself");
  return 0;
}
