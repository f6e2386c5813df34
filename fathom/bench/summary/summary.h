// benchmark_summary.md, every figure computed from the rows. Of the suite reference23 it shows two
// things apart: the rows of the published benchmark, table by table as that has them, and the calls
// that its preset's graph makes. Of a preset it shows these alone.
#pragma once

#include <string>

#include "fathom/bench/harness.h"

namespace fathom {

/// True if the report holds the suite reference23 in full, so that the tables can be filled.
bool is_whole_reference_suite(const BenchReport& report);

/// What has no time is named under the table that it is missing in. Errors: those of the catalogue
/// of presets.
Result<std::string> write_reference_summary(const BenchReport& report);

/// The same of a run of a preset's own calls.
Result<std::string> write_preset_summary(const BenchReport& report);

}  // namespace fathom
