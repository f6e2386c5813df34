#include "fathom/bench/files/csv.h"

#include <cmath>
#include <cstdint>
#include <variant>

#include "fathom/os/file.h"
#include "fathom/text/csv_records.h"

namespace fathom {
namespace {

/// Where the value of a column lives in a row.
using Member = std::variant<std::string BenchRow::*,
                            Figure BenchRow::*,
                            std::string BenchConditions::*,
                            int64_t BenchConditions::*,
                            RowStatus BenchRow::*>;

struct Column {
  std::string_view name;
  Member member;
  FieldKind kind = FieldKind::kText;
  bool may_miss = false;  ///< in files of earlier versions
};

const Column kColumns[] = {
    {"fathom_version", &BenchConditions::fathom_version},
    {"commit", &BenchConditions::commit},
    {"timestamp", &BenchConditions::timestamp},
    {"host_cpu", &BenchConditions::host_cpu},
    {"host_isa", &BenchConditions::host_isa},
    {"host_cores", &BenchConditions::host_cores, FieldKind::kWhole},
    {"host_mem_bytes", &BenchConditions::host_mem_bytes, FieldKind::kWhole},
    {"device_name", &BenchConditions::device_name},
    {"threads", &BenchConditions::threads, FieldKind::kWhole},
    {"kernel", &BenchRow::kernel},
    {"reference_name", &BenchRow::reference_name},
    {"variant", &BenchRow::variant},
    {"case", &BenchRow::case_name},
    {"op", &BenchRow::op},
    {"layer_kind", &BenchRow::layer_kind},
    {"phase", &BenchRow::phase},
    {"backend", &BenchRow::backend},
    {"arch", &BenchRow::arch},
    {"status", &BenchRow::status},
    {"shape", &BenchRow::shape},
    {"B", &BenchRow::b, FieldKind::kWhole},
    {"S", &BenchRow::s, FieldKind::kWhole},
    {"KV", &BenchRow::kv, FieldKind::kWhole},
    {"M", &BenchRow::m, FieldKind::kWhole},
    {"N", &BenchRow::n, FieldKind::kWhole},
    {"K", &BenchRow::k, FieldKind::kWhole},
    {"E", &BenchRow::e, FieldKind::kWhole},
    {"topk", &BenchRow::topk, FieldKind::kWhole},
    {"H", &BenchRow::h, FieldKind::kWhole},
    {"D", &BenchRow::d, FieldKind::kWhole},
    {"dtype_w", &BenchRow::dtype_w},
    {"dtype_a", &BenchRow::dtype_a},
    {"dtype_out", &BenchRow::dtype_out},
    {"scale_fmt", &BenchRow::scale_fmt},
    {"reps", &BenchRow::reps, FieldKind::kWhole},
    {"us_median", &BenchRow::us_median, FieldKind::kNumber},
    {"us_mean", &BenchRow::us_mean, FieldKind::kNumber},
    {"us_min", &BenchRow::us_min, FieldKind::kNumber},
    {"us_max", &BenchRow::us_max, FieldKind::kNumber},
    {"us_p10", &BenchRow::us_p10, FieldKind::kNumber},
    {"us_p90", &BenchRow::us_p90, FieldKind::kNumber},
    {"flops", &BenchRow::flops, FieldKind::kWhole},
    {"bytes_model", &BenchRow::bytes_model, FieldKind::kWhole},
    {"tflops", &BenchRow::tflops, FieldKind::kNumber},
    {"gbps", &BenchRow::gbps, FieldKind::kNumber},
    {"ai", &BenchRow::ai, FieldKind::kNumber},
    {"bound", &BenchRow::bound},
    {"roof_us", &BenchRow::roof_us, FieldKind::kNumber},
    {"pct_of_roof", &BenchRow::pct_of_roof, FieldKind::kNumber},
    {"peak_used", &BenchRow::peak_used},
    {"max_abs", &BenchRow::max_abs, FieldKind::kNumber},
    {"max_rel", &BenchRow::max_rel, FieldKind::kNumber},
    {"cos", &BenchRow::cos, FieldKind::kNumber},
    {"sqnr_db", &BenchRow::sqnr_db, FieldKind::kNumber},
    {"passed", &BenchRow::passed, FieldKind::kFlag},
    {"budget", &BenchRow::budget},
    {"checked", &BenchRow::checked, FieldKind::kText, true},
    {"clock_mhz", &BenchRow::clock_mhz, FieldKind::kNumber},
    {"mem_mhz", &BenchRow::mem_mhz, FieldKind::kNumber},
    {"power_w", &BenchRow::power_w, FieldKind::kNumber},
    {"temp_c", &BenchRow::temp_c, FieldKind::kNumber},
    {"note", &BenchRow::note},
};

constexpr std::string_view kSchemaColumn = "schema";

template <class... F>
struct Overload : F... {
  using F::operator()...;
};

template <class... F>
Overload(F...) -> Overload<F...>;

std::string field_of(const BenchRow& row, const Member& member) {
  return std::visit(
      Overload{[&](std::string BenchRow::*m) { return row.*m; },
               [&](Figure BenchRow::*m) { return row.*m ? str_cat(*(row.*m)) : std::string{}; },
               [&](std::string BenchConditions::*m) { return row.conditions.*m; },
               [&](int64_t BenchConditions::*m) { return str_cat(row.conditions.*m); },
               [&](RowStatus BenchRow::*m) { return std::string(row_status_name(row.*m)); }},
      member);
}

Status store_field(BenchRow& row, const Member& member, const std::string& text) {
  return std::visit(Overload{[&](std::string BenchRow::*m) -> Status {
                               row.*m = text;
                               return {};
                             },
                             [&](Figure BenchRow::*m) -> Status {
                               if (text.empty()) return {};
                               FATHOM_ASSIGN(row.*m, parse_csv_number(text));
                               return {};
                             },
                             [&](std::string BenchConditions::*m) -> Status {
                               row.conditions.*m = text;
                               return {};
                             },
                             [&](int64_t BenchConditions::*m) -> Status {
                               FATHOM_ASSIGN(const double value, parse_csv_number(text));
                               if (value != std::floor(value) || std::fabs(value) > 0x1p53) {
                                 return corrupt(str_cat("'", text, "' is no whole number"));
                               }
                               row.conditions.*m = static_cast<int64_t>(value);
                               return {};
                             },
                             [&](RowStatus BenchRow::*m) -> Status {
                               FATHOM_ASSIGN(row.*m, parse_row_status(text));
                               return {};
                             }},
                    member);
}

/// Which field of a record holds each column.
struct Header {
  static constexpr size_t kAbsent = SIZE_MAX;

  size_t num_fields = 0;
  size_t schema = 0;
  std::vector<size_t> fields;  // of kColumns; kAbsent where one is missing that may

  static Result<Header> parse(const std::vector<std::string>& names) {
    Header header;
    header.num_fields = names.size();
    FATHOM_ASSIGN(header.schema, find(names, kSchemaColumn));
    for (const Column& column : kColumns) {
      Result<size_t> at = find(names, column.name);
      if (!at.ok() && column.may_miss) at = kAbsent;
      if (!at.ok()) return std::move(at).status();
      header.fields.push_back(*at);
    }
    return header;
  }

 private:
  static Result<size_t> find(const std::vector<std::string>& names, std::string_view name) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) return i;
    }
    return corrupt(
        str_cat("column '", name, "' is missing; expected a file of schema ", kKernelBenchSchema));
  }
};

/// A figure where there must be one, none where there must be none.
Status check_figures(const BenchRow& row) {
  const struct {
    std::string_view name;
    const Figure& value;
  } times[] = {{"us_median", row.us_median}, {"us_mean", row.us_mean}, {"us_min", row.us_min},
               {"us_max", row.us_max},       {"us_p10", row.us_p10},   {"us_p90", row.us_p90}};

  for (const auto& [name, value] : times) {
    if (row.status == RowStatus::kOk && !value) {
      return corrupt(str_cat("column ", name, ": empty, but the row has status ok"));
    }
    if (row.status != RowStatus::kOk && value) {
      return corrupt(str_cat("column ", name, ": ", *value, ", but the row has status ",
                             row_status_name(row.status), " and can have no time"));
    }
    if (value && *value <= 0) {
      return corrupt(str_cat("column ", name, ": ", *value, " is no time"));
    }
  }
  return {};
}

Result<BenchRow> parse_row(const Header& header, const std::vector<std::string>& fields) {
  if (fields.size() != header.num_fields) {
    return corrupt(str_cat("has ", fields.size(), " fields, the header has ", header.num_fields));
  }
  if (fields[header.schema] != kKernelBenchSchema) {
    return corrupt(str_cat("column schema: '", fields[header.schema].substr(0, 40), "', expected ",
                           kKernelBenchSchema));
  }
  BenchRow row;
  for (size_t c = 0; c < header.fields.size(); ++c) {
    if (header.fields[c] == Header::kAbsent) continue;
    Status status = store_field(row, kColumns[c].member, fields[header.fields[c]]);
    if (!status.ok()) {
      return std::move(status).add_context(str_cat("column ", kColumns[c].name));
    }
  }
  FATHOM_TRY(check_figures(row));
  return row;
}

Result<std::vector<BenchRow>> read_records(std::string_view text) {
  CsvRecords records(text);
  Result<std::vector<std::string>> names = records.next();
  if (!names.ok()) return std::move(names).status().add_context("line 1");
  Result<Header> header = Header::parse(*names);
  if (!header.ok()) return std::move(header).status().add_context("line 1");
  std::vector<BenchRow> rows;
  while (!records.done()) {
    const std::string line = str_cat("line ", records.line());
    Result<std::vector<std::string>> fields = records.next();
    if (!fields.ok()) return std::move(fields).status().add_context(line);
    if (fields->size() == 1 && fields->front().empty()) continue;  // an empty line
    Result<BenchRow> row = parse_row(*header, *fields);
    if (!row.ok()) return std::move(row).status().add_context(line);
    rows.push_back(std::move(row).value());
  }
  return rows;
}

}  // namespace

std::string_view row_status_name(RowStatus status) {
  switch (status) {
    case RowStatus::kOk:
      return "ok";
    case RowStatus::kWrong:
      return "wrong";
    case RowStatus::kUnavailable:
      return "unavailable";
    case RowStatus::kCrashed:
      return "crashed";
  }
  return "";
}

Result<RowStatus> parse_row_status(std::string_view name) {
  for (RowStatus status :
       {RowStatus::kOk, RowStatus::kWrong, RowStatus::kUnavailable, RowStatus::kCrashed}) {
    if (row_status_name(status) == name) return status;
  }
  return corrupt(str_cat("'", name.substr(0, 40),
                         "' is no status; expected ok, wrong, unavailable or crashed"));
}

std::string bench_rows_path(const std::string& path) {
  if (path_kind(path) != PathKind::kDirectory) return path;
  std::string inside = join_path(path, kAllRowsFile);
  return path_kind(inside) == PathKind::kFile ? inside : path;
}

std::vector<std::string> bench_csv_columns() {
  std::vector<std::string> names = {std::string(kSchemaColumn)};
  for (const Column& column : kColumns)
    names.emplace_back(column.name);
  return names;
}

std::vector<BenchField> bench_fields(const BenchRow& row) {
  std::vector<BenchField> fields = {{kSchemaColumn, std::string(kKernelBenchSchema)}};
  for (const Column& column : kColumns) {
    std::string text = field_of(row, column.member);
    if (text.empty()) continue;
    fields.push_back({column.name, std::move(text), column.kind});
  }
  return fields;
}

std::string write_bench_csv(std::span<const BenchRow> rows) {
  std::string out(kSchemaColumn);
  for (const Column& column : kColumns)
    str_append(out, str_cat(",", column.name));
  out += '\n';
  for (const BenchRow& row : rows) {
    out += kKernelBenchSchema;
    for (const Column& column : kColumns) {
      out += ',';
      append_csv_field(out, field_of(row, column.member));
    }
    out += '\n';
  }
  return out;
}

Result<std::vector<BenchRow>> read_bench_csv(std::string_view text, std::string_view path) {
  Result<std::vector<BenchRow>> rows = read_records(text);
  if (!rows.ok()) return std::move(rows).status().add_context(std::string(path));
  return rows;
}

}  // namespace fathom
