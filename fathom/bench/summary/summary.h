// benchmark_summary.md: what a run of the suite reference23 found, table by table as the published
// benchmark has them, every figure computed from the rows.
#pragma once

#include <string>

#include "fathom/bench/harness.h"

namespace fathom {

/// True if the report holds the suite reference23 in full, so that the tables can be filled.
bool is_whole_reference_suite(const BenchReport& report);

/// Errors: NotFound naming rows without which a table would have a gap.
Result<std::string> write_reference_summary(const BenchReport& report);

}  // namespace fathom
