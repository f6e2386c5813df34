// ops.csv: the calls of a recording in the order of execution, a row a call, and back.
//
// A dry run folds layers that make equal calls into one row, `layers` 3-60 and `calls` 58: figures
// are those of one call. A row of a real run is one call, with its time and, where the run was
// probed, statistics of what it wrote (lists with semicolons, an entry for each written operand).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/report/recording.h"

namespace fathom {

inline constexpr std::string_view kOpsSchema = "fathom.trace.ops/1";

enum class TraceLevel : uint8_t { kDry, kTimed, kProbed };

std::string_view trace_level_name(TraceLevel level);

/// One row, as text and numbers: what a diff or a roofline needs, without the model.
struct OpRow {
  TraceLevel level = TraceLevel::kDry;
  std::string model;
  std::string phase;
  int64_t step = 0;
  int64_t index = 0;  ///< place in the phase
  std::string scope;  ///< "model/layers 3-60/self_attn"
  std::string layers;
  int64_t calls = 1;
  std::string op;
  std::string kernel;
  std::string reference_names;
  std::string variant;
  std::string backend;
  std::string inputs;  ///< names, formats, sizes: "x bf16 [1, 7168]; w nvfp4 [4096, 7168]"
  std::string outputs;
  std::string symbols;  ///< the shapes of both in symbols
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  double weight_bytes = 0;
  double cache_bytes = 0;
  double activation_bytes = 0;
  std::string unit;
  std::optional<double> start_us;  ///< from the start of the recording
  std::optional<double> us;
  std::vector<std::string> written;  ///< operands with statistics
  std::vector<TensorStatistics> statistics;
  std::string file;
  std::string function;
};

/// The rows of a recording.
std::vector<OpRow> op_rows(const Recording& recording);

std::string write_ops_csv(const std::vector<OpRow>& rows);

/// Reads what write_ops_csv wrote; columns may come in another order and further ones may follow.
/// Refused: a missing column, another schema, a number that is malformed, not finite or negative, a
/// timed row without a time and a dry one with one, statistics that are not as many as operands.
/// `path` names the text in messages. Errors: Corrupt, with line and column. Never throws.
Result<std::vector<OpRow>> read_ops_csv(std::string_view text, std::string_view path);

/// "f32", "bf16", ...
std::string_view math_unit_name(MathUnit unit);

}  // namespace fathom
