#include "fathom/report/files/summary.h"

#include <algorithm>
#include <map>

#include "fathom/base/str_cat.h"
#include "fathom/bench/timing/timer.h"
#include "fathom/text/csv_records.h"
#include "fathom/text/figures.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

// Calls that go into one row.
struct Sum {
  SummaryRow row;
  std::vector<double> us;
  double roof_us = 0;

  void add(const TraceOp& op, bool timed, const Peaks* peaks) {
    row.calls += op.calls;
    const auto calls = static_cast<double>(op.calls);
    row.flops += calls * op.cost.flops;
    row.bytes_read += calls * static_cast<double>(op.cost.bytes_read);
    row.bytes_written += calls * static_cast<double>(op.cost.bytes_written);
    row.weight_bytes += calls * static_cast<double>(op.traffic.weights);
    row.cache_bytes += calls * static_cast<double>(op.traffic.cache);
    row.activation_bytes += calls * static_cast<double>(op.traffic.activations);
    if (timed) us.push_back(static_cast<double>(op.end_ns - op.start_ns) * 1e-3);
    if (peaks != nullptr) roof_us += fathom::roof_us(op.cost, *peaks);
  }

  SummaryRow finish(double all_bytes, double all_us, const Peaks* peaks) {
    row.share_of_bytes = all_bytes > 0 ? row.bytes() / all_bytes : 0;
    if (us.empty()) return row;
    std::sort(us.begin(), us.end());
    double total = 0;
    for (double value : us)
      total += value;
    row.total_us = total;
    row.share_of_time = all_us > 0 ? total / all_us : 0;
    row.avg_us = total / static_cast<double>(us.size());
    row.p50_us = quantile(us, 0.5);
    row.p99_us = quantile(us, 0.99);
    if (peaks != nullptr && total > 0) row.pct_of_roof = 100 * roof_us / total;
    return row;
  }
};

std::vector<SummaryRow> phase_rows(const Recording& r,
                                   const TracePhase& phase,
                                   const Peaks* peaks) {
  Sum all;
  all.row.phase = phase.name;
  all.row.name = phase.name;
  std::map<std::string, Sum> ops;
  std::map<std::string, Sum> kernels;
  for (const TraceOp& op : phase.ops) {
    all.add(op, r.timed, peaks);
    const std::string tail = str_cat(op.kernel, "/", op.variant);
    Sum& by_op = ops[str_cat(op.op, "/", tail)];
    by_op.row.kind = SummaryKind::kOp;
    by_op.row.name = op.op;
    Sum& by_kernel = kernels[tail];
    by_kernel.row.kind = SummaryKind::kKernel;
    by_kernel.row.name = op.kernel;
    for (Sum* sum : {&by_op, &by_kernel}) {
      sum->row.phase = phase.name;
      sum->row.kernel = op.kernel;
      sum->row.variant = op.variant;
      sum->add(op, r.timed, peaks);
    }
  }
  double all_us = 0;
  for (double us : all.us)
    all_us += us;
  const double all_bytes = all.row.bytes();
  std::vector<SummaryRow> out{all.finish(all_bytes, all_us, peaks)};
  if (!phase.steps.empty()) {
    double wall = 0;
    for (const TraceStep& step : phase.steps)
      wall += static_cast<double>(step.duration_ns()) * 1e-3;
    out.front().as_graphs = phase.steps.front().graph_ns > 0;
    out.front().steps = static_cast<double>(phase.steps.size());
    out.front().wall_us = wall;
    out.front().gap_us = wall - all_us;
  }
  for (auto* group : {&ops, &kernels}) {
    std::vector<SummaryRow> rows;
    for (auto& entry : *group)
      rows.push_back(entry.second.finish(all_bytes, all_us, peaks));
    std::stable_sort(rows.begin(), rows.end(), [](const SummaryRow& a, const SummaryRow& b) {
      return a.total_us.value_or(a.bytes()) > b.total_us.value_or(b.bytes());
    });
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

std::string_view kind_name(SummaryKind kind) {
  switch (kind) {
    case SummaryKind::kPhase:
      return "phase";
    case SummaryKind::kOp:
      return "op";
    case SummaryKind::kKernel:
      return "kernel";
  }
  return {};
}

std::string text_of(const std::optional<double>& value) {
  return value ? str_cat(*value) : std::string{};
}

}  // namespace

double roof_us(const Cost& cost, const Peaks& peaks) {
  const double gbps = peaks.memory_gbps(cost.bytes_read, cost.bytes_written);
  const double gflops = peaks.compute_gflops(cost.unit);
  const double memory = gbps > 0 ? static_cast<double>(cost.bytes()) / gbps * 1e-3 : 0;
  const double math = gflops > 0 ? cost.flops / gflops * 1e-3 : 0;
  return std::max(memory, math);
}

std::vector<SummaryRow> summarise(const Recording& recording, const Peaks* peaks) {
  std::vector<SummaryRow> out;
  for (SummaryKind kind : {SummaryKind::kPhase, SummaryKind::kOp, SummaryKind::kKernel}) {
    for (const TracePhase& phase : recording.phases)
      for (SummaryRow& row : phase_rows(recording, phase, peaks))
        if (row.kind == kind) out.push_back(std::move(row));
  }
  return out;
}

std::string write_summary_csv(const std::vector<SummaryRow>& rows, const Recording& recording) {
  std::string out;
  append_csv_record(
      out, {"schema",         "model",         "level",         "phase",       "kind",
            "name",           "kernel",        "variant",       "calls",       "flops",
            "bytes_read",     "bytes_written", "weight_bytes",  "cache_bytes", "activation_bytes",
            "share_of_bytes", "total_us",      "share_of_time", "avg_us",      "p50_us",
            "p99_us",         "pct_of_roof",   "steps",         "wall_us",     "gap_us"});
  for (const SummaryRow& r : rows) {
    append_csv_record(out, {std::string(kSummarySchema),
                            recording.model,
                            recording.timed ? "timed" : "dry",
                            r.phase,
                            std::string(kind_name(r.kind)),
                            r.name,
                            r.kernel,
                            r.variant,
                            str_cat(r.calls),
                            str_cat(r.flops),
                            str_cat(r.bytes_read),
                            str_cat(r.bytes_written),
                            str_cat(r.weight_bytes),
                            str_cat(r.cache_bytes),
                            str_cat(r.activation_bytes),
                            str_cat(r.share_of_bytes),
                            text_of(r.total_us),
                            text_of(r.share_of_time),
                            text_of(r.avg_us),
                            text_of(r.p50_us),
                            text_of(r.p99_us),
                            text_of(r.pct_of_roof),
                            text_of(r.steps),
                            text_of(r.wall_us),
                            text_of(r.gap_us)});
  }
  return out;
}

std::string write_summary_json(const std::vector<SummaryRow>& rows, const Recording& recording) {
  JsonWriter out(JsonStyle::kIndented);
  const auto figure = [&](std::string_view key, const std::optional<double>& value) {
    out.key(key);
    if (value) {
      out.number(*value);
    } else {
      out.null();
    }
  };
  out.begin_object().key("schema").string(kSummarySchema).key("model").string(recording.model);
  out.key("level").string(recording.timed ? "timed" : "dry").key("rows").begin_array();
  for (const SummaryRow& r : rows) {
    out.begin_object().key("phase").string(r.phase).key("kind").string(kind_name(r.kind));
    out.key("name").string(r.name).key("kernel").string(r.kernel).key("variant").string(r.variant);
    out.key("calls").integer(r.calls).key("flops").number(r.flops);
    out.key("bytes_read").number(r.bytes_read).key("bytes_written").number(r.bytes_written);
    out.key("weight_bytes").number(r.weight_bytes).key("cache_bytes").number(r.cache_bytes);
    out.key("activation_bytes").number(r.activation_bytes);
    out.key("share_of_bytes").number(r.share_of_bytes);
    figure("total_us", r.total_us);
    figure("share_of_time", r.share_of_time);
    figure("avg_us", r.avg_us);
    figure("p50_us", r.p50_us);
    figure("p99_us", r.p99_us);
    figure("pct_of_roof", r.pct_of_roof);
    figure("steps", r.steps);
    figure("wall_us", r.wall_us);
    figure("gap_us", r.gap_us);
    out.end_object();
  }
  out.end_array().end_object();
  return out.take() + "\n";
}

std::string summary_lines(const std::vector<SummaryRow>& rows) {
  std::string out;
  for (const SummaryRow& r : rows) {
    if (r.kind != SummaryKind::kPhase) continue;
    str_append(out, str_cat(r.phase, ": ", r.calls, " calls, ", format_si(r.flops), "FLOP, ",
                            format_bytes(static_cast<int64_t>(r.bytes()))));
    if (r.wall_us && r.steps && *r.steps > 0 && *r.wall_us > 0) {
      const double kernels_us = r.total_us.value_or(0);
      str_append(out,
                 str_cat("; ", *r.steps, *r.steps > 1 ? " steps, " : " step, ",
                         format_fixed(*r.wall_us / *r.steps * 1e-3, 3), " ms each",
                         r.as_graphs ? str_cat(" as one graph, ",
                                               format_fixed(kernels_us / *r.steps * 1e-3, 3),
                                               " ms op by op with a mark after each")
                                     : str_cat(", ", format_fixed(100 * kernels_us / *r.wall_us, 2),
                                               " % of it in kernels")));
    }
    out += '\n';
  }
  return out;
}

}  // namespace fathom
