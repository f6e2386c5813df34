#include "fathom/report/files/ops_csv.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/report/op_tree.h"
#include "fathom/text/csv_records.h"

namespace fathom {
namespace {

using Member = std::variant<std::string OpRow::*,
                            int64_t OpRow::*,
                            double OpRow::*,
                            std::optional<double> OpRow::*,
                            TraceLevel OpRow::*,
                            std::vector<std::string> OpRow::*,
                            double TensorStatistics::*,
                            int64_t TensorStatistics::*>;

struct Column {
  std::string_view name;
  Member member;
};

const Column kColumns[] = {
    {"level", &OpRow::level},
    {"model", &OpRow::model},
    {"phase", &OpRow::phase},
    {"step", &OpRow::step},
    {"index", &OpRow::index},
    {"scope", &OpRow::scope},
    {"layers", &OpRow::layers},
    {"calls", &OpRow::calls},
    {"op", &OpRow::op},
    {"kernel", &OpRow::kernel},
    {"reference_names", &OpRow::reference_names},
    {"variant", &OpRow::variant},
    {"backend", &OpRow::backend},
    {"inputs", &OpRow::inputs},
    {"outputs", &OpRow::outputs},
    {"symbols", &OpRow::symbols},
    {"flops", &OpRow::flops},
    {"bytes_read", &OpRow::bytes_read},
    {"bytes_written", &OpRow::bytes_written},
    {"weight_bytes", &OpRow::weight_bytes},
    {"cache_bytes", &OpRow::cache_bytes},
    {"activation_bytes", &OpRow::activation_bytes},
    {"unit", &OpRow::unit},
    {"start_us", &OpRow::start_us},
    {"us", &OpRow::us},
    {"written", &OpRow::written},
    {"min", &TensorStatistics::min},
    {"max", &TensorStatistics::max},
    {"mean", &TensorStatistics::mean},
    {"l2", &TensorStatistics::l2},
    {"non_finite", &TensorStatistics::non_finite},
    {"file", &OpRow::file},
    {"function", &OpRow::function},
};

constexpr std::string_view kSchemaColumn = "schema";

template <class... F>
struct Overload : F... {
  using F::operator()...;
};

template <class... F>
Overload(F...) -> Overload<F...>;

std::string sizes_text(const TraceOp& op, bool results) {
  std::string out;
  for (const TraceOperand& o : op.operands()) {
    if (results ? !o.written : !o.read) continue;
    str_append(
        out, str_cat(out.empty() ? "" : "; ", o.name, " ", format_name(o.format), " ", o.sizes()));
  }
  return out;
}

std::string symbols_text(const TraceOp& op) {
  std::string out;
  for (const TraceOperand& o : op.operands())
    str_append(out, str_cat(out.empty() ? "" : "; ", o.name, " ", o.symbols()));
  return out;
}

std::string reference_names_text(std::string_view kernel) {
  std::string out;
  const KernelEntry* entry = find_kernel(kernel);
  if (entry == nullptr) return out;
  for (std::string_view name : entry->info.reference_names)
    str_append(out, str_cat(out.empty() ? "" : "; ", name));
  return out;
}

OpRow row_of(const Recording& r, const TracePhase& phase, const TraceOp& op) {
  OpRow row;
  row.model = r.model;
  row.phase = phase.name;
  row.step = op.step;
  row.op = op.op;
  row.kernel = op.kernel;
  row.reference_names = reference_names_text(op.kernel);
  row.variant = op.variant;
  row.backend = backend_name(op.backend);
  row.inputs = sizes_text(op, false);
  row.outputs = sizes_text(op, true);
  row.symbols = symbols_text(op);
  row.flops = op.cost.flops;
  row.bytes_read = static_cast<double>(op.cost.bytes_read);
  row.bytes_written = static_cast<double>(op.cost.bytes_written);
  row.weight_bytes = static_cast<double>(op.traffic.weights);
  row.cache_bytes = static_cast<double>(op.traffic.cache);
  row.activation_bytes = static_cast<double>(op.traffic.activations);
  row.unit = math_unit_name(op.cost.unit);
  row.file = project_path(op.site.file);
  row.function = op.site.function;
  return row;
}

std::string scope_path(const TraceOp& op) {
  std::string out;
  for (const ScopeName& s : op.scopes) {
    str_append(out, str_cat(out.empty() ? "" : "/", std::string_view(s.name)));
    if (s.index >= 0) str_append(out, str_cat(" ", s.index));
  }
  return out;
}

void add_folded(const Recording& r, const TracePhase& phase, std::vector<OpRow>& out) {
  int64_t index = 0;
  const TreeNode tree = build_tree(phase.ops);
  for (const Leaf& leaf : leaves_of(tree)) {
    OpRow row = row_of(r, phase, *leaf.form->op);
    row.index = index++;
    row.scope = leaf.path;
    row.layers = ranges_text(leaf.form->layers);
    row.calls = leaf.form->calls;
    out.push_back(std::move(row));
  }
}

void add_calls(const Recording& r,
               const TracePhase& phase,
               int64_t begin_ns,
               std::vector<OpRow>& out) {
  int64_t index = 0;
  for (const TraceOp& op : phase.ops) {
    OpRow row = row_of(r, phase, op);
    row.level = TraceLevel::kTimed;
    row.index = index++;
    row.scope = scope_path(op);
    if (const int layer = op.index_in("layer"); layer >= 0) row.layers = str_cat(layer);
    row.start_us = static_cast<double>(op.start_ns - begin_ns) * 1e-3;
    row.us = static_cast<double>(op.end_ns - op.start_ns) * 1e-3;
    for (const WrittenStatistics& s : op.statistics) {
      row.level = TraceLevel::kProbed;
      row.written.emplace_back(s.operand);
      row.statistics.push_back(s.value);
    }
    out.push_back(std::move(row));
  }
}

// ---- Fields

template <class T, class F>
std::string list_text(const std::vector<T>& items, F&& text) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i)
    str_append(out, str_cat(i == 0 ? "" : ";", text(items[i])));
  return out;
}

std::string field_of(const OpRow& row, const Member& member) {
  return std::visit(
      Overload{[&](std::string OpRow::*m) { return row.*m; },
               [&](int64_t OpRow::*m) { return str_cat(row.*m); },
               [&](double OpRow::*m) { return str_cat(row.*m); },
               [&](std::optional<double> OpRow::*m) { return row.*m ? str_cat(*(row.*m)) : ""; },
               [&](TraceLevel OpRow::*m) { return std::string(trace_level_name(row.*m)); },
               [&](std::vector<std::string> OpRow::*m) {
                 return list_text(row.*m, [](const std::string& s) { return s; });
               },
               [&](double TensorStatistics::*m) {
                 return list_text(row.statistics,
                                  [&](const TensorStatistics& s) { return str_cat(s.*m); });
               },
               [&](int64_t TensorStatistics::*m) {
                 return list_text(row.statistics,
                                  [&](const TensorStatistics& s) { return str_cat(s.*m); });
               }},
      member);
}

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

Result<int64_t> parse_whole(std::string_view text) {
  FATHOM_ASSIGN(const double value, parse_csv_number(text));
  if (value != std::floor(value) || std::fabs(value) > 0x1p53) {
    return corrupt(str_cat("'", text.substr(0, 40), "' is no whole number"));
  }
  return static_cast<int64_t>(value);
}

Result<double> parse_figure(std::string_view text) {
  if (text.empty()) return corrupt("is empty, expected a figure");
  FATHOM_ASSIGN(const double value, parse_csv_number(text));
  if (value < 0) return corrupt(str_cat("'", text.substr(0, 40), "' is negative"));
  return value;
}

template <class T, class Parse>
Status store_list(OpRow& row, T TensorStatistics::*m, std::string_view text, Parse&& parse) {
  const auto items = split_list(text);
  if (items.size() != row.statistics.size()) {
    return corrupt(str_cat("has ", items.size(), " entries, but column written names ",
                           row.statistics.size(), " operands"));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    FATHOM_ASSIGN(row.statistics[i].*m, parse(items[i]));
  }
  return {};
}

Status store_field(OpRow& row, const Member& member, const std::string& text) {
  return std::visit(
      Overload{
          [&](std::string OpRow::*m) -> Status {
            row.*m = text;
            return {};
          },
          [&](int64_t OpRow::*m) -> Status {
            FATHOM_ASSIGN(row.*m, parse_whole(text));
            if (row.*m < 0) return corrupt(str_cat("'", text.substr(0, 40), "' is negative"));
            return {};
          },
          [&](double OpRow::*m) -> Status {
            FATHOM_ASSIGN(row.*m, parse_figure(text));
            return {};
          },
          [&](std::optional<double> OpRow::*m) -> Status {
            const bool dry = row.level == TraceLevel::kDry;
            if (dry && text.empty()) return {};
            if (dry)
              return corrupt(
                  str_cat("'", text.substr(0, 40), "' in a row of a dry run, which has no time"));
            FATHOM_ASSIGN(row.*m, parse_figure(text));
            return {};
          },
          [&](TraceLevel OpRow::*m) -> Status {
            for (TraceLevel level : {TraceLevel::kDry, TraceLevel::kTimed, TraceLevel::kProbed}) {
              if (trace_level_name(level) != text) continue;
              row.*m = level;
              return {};
            }
            return corrupt(
                str_cat("'", text.substr(0, 40), "' is no level; expected dry, timed or probed"));
          },
          [&](std::vector<std::string> OpRow::*m) -> Status {
            for (std::string_view item : split_list(text))
              (row.*m).emplace_back(item);
            row.statistics.resize((row.*m).size());
            return {};
          },
          [&](double TensorStatistics::*m) { return store_list(row, m, text, parse_csv_number); },
          [&](int64_t TensorStatistics::*m) { return store_list(row, m, text, parse_whole); }},
      member);
}

// Where each column is in a file.
struct Header {
  size_t num_fields = 0;
  size_t schema = 0;
  std::vector<size_t> fields;  // of kColumns

  static Result<Header> parse(const std::vector<std::string>& names) {
    Header header;
    header.num_fields = names.size();
    FATHOM_ASSIGN(header.schema, find(names, kSchemaColumn));
    for (const Column& column : kColumns) {
      FATHOM_ASSIGN(const size_t at, find(names, column.name));
      header.fields.push_back(at);
    }
    return header;
  }

 private:
  static Result<size_t> find(const std::vector<std::string>& names, std::string_view name) {
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return i;
    return corrupt(
        str_cat("column '", name, "' is missing; expected a file of schema ", kOpsSchema));
  }
};

Result<OpRow> parse_row(const Header& header, const std::vector<std::string>& fields) {
  if (fields.size() != header.num_fields) {
    return corrupt(str_cat("has ", fields.size(), " fields, the header has ", header.num_fields));
  }
  if (fields[header.schema] != kOpsSchema) {
    return corrupt(str_cat("column schema: '", fields[header.schema].substr(0, 40), "', expected ",
                           kOpsSchema));
  }
  OpRow row;
  for (size_t c = 0; c < header.fields.size(); ++c) {
    Status status = store_field(row, kColumns[c].member, fields[header.fields[c]]);
    if (!status.ok()) return std::move(status).add_context(str_cat("column ", kColumns[c].name));
  }
  if (row.op.empty()) return corrupt("column op: is empty, expected the name of an op");
  if (row.kernel.empty()) return corrupt("column kernel: is empty, expected the name of a kernel");
  return row;
}

Result<std::vector<OpRow>> read_records(std::string_view text) {
  CsvRecords records(text);
  Result<std::vector<std::string>> names = records.next();
  if (!names.ok()) return std::move(names).status().add_context("line 1");
  Result<Header> header = Header::parse(*names);
  if (!header.ok()) return std::move(header).status().add_context("line 1");
  std::vector<OpRow> rows;
  while (!records.done()) {
    const std::string line = str_cat("line ", records.line());
    Result<std::vector<std::string>> fields = records.next();
    if (!fields.ok()) return std::move(fields).status().add_context(line);
    if (fields->size() == 1 && fields->front().empty()) continue;  // an empty line
    Result<OpRow> row = parse_row(*header, *fields);
    if (!row.ok()) return std::move(row).status().add_context(line);
    rows.push_back(std::move(row).value());
  }
  return rows;
}

}  // namespace

std::string_view trace_level_name(TraceLevel level) {
  switch (level) {
    case TraceLevel::kDry:
      return "dry";
    case TraceLevel::kTimed:
      return "timed";
    case TraceLevel::kProbed:
      return "probed";
  }
  return {};
}

std::string_view math_unit_name(MathUnit unit) {
  switch (unit) {
    case MathUnit::kF32:
      return "f32";
    case MathUnit::kBf16:
      return "bf16";
    case MathUnit::kFp8:
      return "fp8";
    case MathUnit::kFp4:
      return "fp4";
    case MathUnit::kInt8:
      return "int8";
  }
  return {};
}

std::vector<OpRow> op_rows(const Recording& recording) {
  std::vector<OpRow> out;
  for (const TracePhase& phase : recording.phases) {
    if (!recording.timed) {
      add_folded(recording, phase, out);
    } else {
      add_calls(recording, phase, recording.begin_ns, out);
    }
  }
  return out;
}

std::string write_ops_csv(const std::vector<OpRow>& rows) {
  std::vector<std::string> fields{std::string(kSchemaColumn)};
  for (const Column& column : kColumns)
    fields.emplace_back(column.name);
  std::string out;
  append_csv_record(out, fields);
  for (const OpRow& row : rows) {
    fields.assign(1, std::string(kOpsSchema));
    for (const Column& column : kColumns)
      fields.push_back(field_of(row, column.member));
    append_csv_record(out, fields);
  }
  return out;
}

Result<std::vector<OpRow>> read_ops_csv(std::string_view text, std::string_view path) {
  Result<std::vector<OpRow>> rows = read_records(text);
  if (!rows.ok()) return std::move(rows).status().add_context(std::string(path));
  return rows;
}

}  // namespace fathom
