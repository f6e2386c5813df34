#include "cli/bench/bench_model_report.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "cli/io/terminal.h"
#include "fathom/base/str_cat.h"
#include "fathom/bench/files/peaks_file.h"
#include "fathom/text/csv_records.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

struct Field {
  std::string_view name;
  std::variant<std::string, int64_t, double> value;
};

std::vector<Field> condition_fields(const ModelReport& r) {
  const BenchConditions& c = r.conditions;
  return {{"schema", std::string(kModelBenchSchema)},
          {"fathom_version", c.fathom_version},
          {"commit", c.commit},
          {"timestamp", c.timestamp},
          {"host_cpu", c.host_cpu},
          {"host_isa", c.host_isa},
          {"host_cores", c.host_cores},
          {"host_mem_bytes", c.host_mem_bytes},
          {"device_name", c.device_name},
          {"backend", c.backend},
          {"threads", c.threads},
          {"model", r.model},
          {"format", r.format.empty() ? "own" : r.format},  // the description's own
          {"bytes", r.bytes},
          {"parameters", r.parameters},
          {"repetitions", int64_t{r.repetitions}}};
}

std::vector<Field> rate_fields(const Rate& r) {
  return {{"test", r.test},
          {"phase", std::string(r.phase)},
          {"batch", r.batch},
          {"tokens", r.tokens},
          {"depth", r.depth},
          {"tokens_per_s", r.tokens_per_s},
          {"tokens_per_s_low", r.low},
          {"tokens_per_s_high", r.high},
          {"step_us", r.step_seconds * 1e6}};
}

void write_fields(JsonWriter& json, const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    json.key(field.name);
    if (const auto* text = std::get_if<std::string>(&field.value)) json.string(*text);
    if (const auto* whole = std::get_if<int64_t>(&field.value)) json.integer(*whole);
    if (const auto* real = std::get_if<double>(&field.value)) json.number(*real);
  }
}

std::string text_of(const Field& field) {
  return std::visit([](const auto& value) { return str_cat(value); }, field.value);
}

std::string write_csv(const ModelReport& report) {
  std::string out;
  std::vector<std::string> names;
  for (const Rate& rate : report.rates) {
    std::vector<Field> fields = condition_fields(report);
    for (Field& field : rate_fields(rate))
      fields.push_back(std::move(field));
    std::vector<std::string> texts;
    names.clear();
    for (const Field& field : fields) {
      names.emplace_back(field.name);
      texts.push_back(text_of(field));
    }
    if (out.empty()) append_csv_record(out, names);
    append_csv_record(out, texts);
  }
  return out;
}

std::string write_json_lines(const ModelReport& report) {
  std::string out;
  for (const Rate& rate : report.rates) {
    JsonWriter json;
    json.begin_object();
    write_fields(json, condition_fields(report));
    write_fields(json, rate_fields(rate));
    json.end_object();
    str_append(out, str_cat(json.take(), "\n"));
  }
  return out;
}

double memory_seconds(const Cost& cost, const Peaks& peaks) {
  return static_cast<double>(cost.bytes()) /
         (peaks.memory_gbps(cost.bytes_read, cost.bytes_written) * 1e9);
}

double math_seconds(const Cost& cost, const Peaks& peaks) {
  return cost.flops / (peaks.compute_gflops(cost.unit) * 1e9);
}

double floor_seconds(const Cost& cost, const Peaks& peaks) {
  return std::max(memory_seconds(cost, peaks), math_seconds(cost, peaks));
}

void write_ops(JsonWriter& json, const PassOps& pass, const Peaks& peaks) {
  const Cost sum = sum_of(pass.totals);
  json.begin_object();
  json.key("phase").string(pass.phase).key("batch").integer(pass.batch);
  json.key("bytes").integer(sum.bytes()).key("flops").number(sum.flops);
  json.key("ops").begin_array();
  for (const auto& [name, total] : pass.totals) {
    json.begin_object();
    json.key("op").string(name).key("calls").integer(total.calls);
    json.key("us").number(total.seconds * 1e6);
    json.key("floor_us").number(floor_seconds(total.cost, peaks) * 1e6);
    json.key("bytes").integer(total.cost.bytes()).key("flops").number(total.cost.flops);
    json.end_object();
  }
  json.end_array().end_object();
}

std::string write_json(const ModelReport& report) {
  JsonWriter json(JsonStyle::kIndented);
  json.begin_object();
  write_fields(json, condition_fields(report));
  json.key("peaks");
  append_peaks(json, report.peaks);
  json.key("rows").begin_array();
  for (const Rate& rate : report.rates) {
    json.begin_object();
    write_fields(json, rate_fields(rate));
    json.end_object();
  }
  json.end_array().key("passes").begin_array();
  for (const PassOps& pass : report.ops)
    write_ops(json, pass, report.peaks);
  json.end_array().end_object();
  return json.take() + "\n";
}

std::string write_markdown(const ModelReport& report) {
  MarkdownTable table({"model", "size", "params", "backend", "threads", "test", "t/s", "range"});
  for (const Rate& r : report.rates) {
    table.add({report.model + (report.format.empty() ? "" : " " + report.format),
               format_bytes(report.bytes),
               format_fixed(static_cast<double>(report.parameters) * 1e-9, 2) + " B",
               report.backend, report.threads, r.test, format_fixed(r.tokens_per_s, 2),
               format_fixed(r.low, 2) + " - " + format_fixed(r.high, 2)});
  }
  return table.str() + report.text;
}

}  // namespace

void add_call(OpTotals& totals, const OpRecord& r, double seconds) {
  OpTotal& t = totals[str_cat(std::string_view(r.op.name), " (", std::string_view(r.kernel), ", ",
                              std::string_view(r.variant ? r.variant : "-"), ")")];
  ++t.calls;
  t.seconds += seconds;
  t.cost.flops += r.cost.flops;
  t.cost.bytes_read += r.cost.bytes_read;
  t.cost.bytes_written += r.cost.bytes_written;
  t.cost.unit = r.cost.unit;
}

Cost sum_of(const OpTotals& totals) {
  Cost sum;
  for (const auto& [name, t] : totals) {
    sum.flops += t.cost.flops;
    sum.bytes_read += t.cost.bytes_read;
    sum.bytes_written += t.cost.bytes_written;
  }
  return sum;
}

ModelReport start_model_report(const OpenedModel& opened,
                               const BenchModelFlags& flags,
                               BenchConditions conditions) {
  ModelReport report;
  report.conditions = std::move(conditions);
  report.model = opened.title;
  report.format = find_option("format")->get(flags.engine);
  report.bytes = opened.model->weights().bytes();
  for (const WeightSummary& s : opened.model->weights().summary())
    report.parameters += s.parameters;
  report.repetitions = flags.repetitions;
  return report;
}

std::string ops_table(const std::string& title,
                      const OpTotals& totals,
                      const Peaks& peaks,
                      int most) {
  std::vector<std::pair<std::string, OpTotal>> ops(totals.begin(), totals.end());
  std::sort(ops.begin(), ops.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double all = 0;
  for (const auto& op : ops)
    all += op.second.seconds;
  if (most > 0 && ops.size() > static_cast<size_t>(most)) ops.resize(static_cast<size_t>(most));
  MarkdownTable table({title, "ms", "share", "floor ms", "of floor", "bound"});
  for (const auto& [name, t] : ops) {
    const double floor = floor_seconds(t.cost, peaks);
    table.add({name, format_fixed(t.seconds * 1e3, 3),
               format_fixed(100 * t.seconds / all, 1) + " %", format_fixed(floor * 1e3, 3),
               format_fixed(t.seconds > 0 ? 100 * floor / t.seconds : 0, 0) + " %",
               memory_seconds(t.cost, peaks) > math_seconds(t.cost, peaks) ? "memory" : "compute"});
  }
  return str_cat("\n", table.str());
}

std::string write_model_report(const ModelReport& report, BenchFormat format) {
  switch (format) {
    case BenchFormat::kMarkdown:
      return write_markdown(report);
    case BenchFormat::kCsv:
      return write_csv(report);
    case BenchFormat::kJson:
      return write_json(report);
    case BenchFormat::kJsonLines:
      return write_json_lines(report);
  }
  return {};
}

}  // namespace fathom::cli
