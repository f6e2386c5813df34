// Benchmark rows as CSV (RFC 4180): one header line, one line a row, every column of the schema in
// its order. A reader gets back what was written, and refuses what was not written by this schema.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/bench/row.h"

namespace fathom {

/// The file with all rows in the directory of a benchmark.
inline constexpr std::string_view kAllRowsFile = "all_kernels.csv";

/// What `path` means where rows are read: that file of a directory that has it, else the path.
std::string bench_rows_path(const std::string& path);

/// The columns in order, `schema` first.
std::vector<std::string> bench_csv_columns();

/// Header and rows. Numbers have the shortest text that reads back as the same value.
std::string write_bench_csv(std::span<const BenchRow> rows);

enum class FieldKind : uint8_t {
  kText,
  kNumber,
  kWhole,  ///< counts and sizes
  kFlag,   ///< "true" or "false"
};

/// The fields of a row by column name; fields without a value are left out. For other formats.
struct BenchField {
  std::string_view column;
  std::string text;
  FieldKind kind = FieldKind::kText;
};

std::vector<BenchField> bench_fields(const BenchRow& row);

/// Reads what write_bench_csv wrote. Columns may come in another order and further ones may follow;
/// a missing column, another schema, a number that is malformed or not finite, an `ok` row without
/// a time and a row that is not ok and has one are refused. `path` names the text in messages.
/// Errors: Corrupt, with line and column. Never throws, whatever the bytes.
Result<std::vector<BenchRow>> read_bench_csv(std::string_view text, std::string_view path);

}  // namespace fathom
