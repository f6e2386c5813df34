// A preset's own table: every call of a step with the row that timed it, so that times and bytes
// add up to the step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fathom/bench/preset/steps.h"
#include "fathom/bench/row.h"

namespace fathom {

/// The rows of a step's calls, one each, null where a call has no row with a time.
std::vector<const BenchRow*> rows_of(const PresetStep& step, std::span<const BenchRow> rows);

struct StepCover {
  int64_t bytes = 0;              ///< of the calls that have a row
  std::vector<std::string> left;  ///< the others, "experts.gate_up_proj (nvfp4_group_gemm)"
};

/// How much of a step the rows cover.
StepCover cover_of(const PresetStep& step, std::span<const BenchRow> rows);

struct StepTime {
  double us = 0;        ///< of the whole step, call after call
  double layer_us = 0;  ///< of the first layer with experts
};

/// Sums of the medians. Errors: NotFound naming every call without a time.
Result<StepTime> step_time(const PresetStep& step, std::span<const BenchRow> rows);

/// The table of a step, with what it moves and how much of it the rows cover. Where a call has no
/// time the step has none, and its table no shares of it.
std::string write_step_table(const PresetStep& step, std::span<const BenchRow> rows);

/// All steps of a preset: how rates grow with batch and length (of the steps that have a time),
/// then a table a step.
std::string write_preset_tables(std::span<const PresetStep> steps, std::span<const BenchRow> rows);

}  // namespace fathom
