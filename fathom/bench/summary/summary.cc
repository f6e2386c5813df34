#include "fathom/bench/summary/summary.h"

#include <algorithm>
#include <map>
#include <set>

#include "fathom/bench/files/report.h"
#include "fathom/bench/reference_names.h"
#include "fathom/bench/suites.h"
#include "fathom/bench/summary/layer.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/models/presets.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

constexpr std::string_view kPreset = "deepseek-r1-nvfp4";

/// Kernels of the suite in its order, by our names.
std::vector<std::string> suite_kernels() {
  std::vector<std::string> names;
  for (const std::string& name : published_reference_names())
    names.emplace_back(find_kernel(name)->info.name);
  return names;
}

std::string code(std::string_view text) {
  return str_cat("`", text, "`");
}

// ---- the machine ----

std::string hardware_of(const BenchConditions& c) {
  const std::string host =
      str_cat(c.threads, " threads on ", c.host_cores, " cores, ", format_bytes(c.host_mem_bytes));
  if (c.backend == "cpu") return str_cat(c.device_name, ", ", c.host_isa, ", ", host);
  return str_cat(c.device_name, ", ", c.arch, "; host ", c.host_cpu, ", ", host);
}

void append_head(std::string& out, const BenchReport& report, int kernels_ok) {
  const BenchConditions& c = report.conditions;
  str_append(out, str_cat("# Kernel benchmark of DeepSeek-R1-NVFP4\n\n**Generated:** ", c.timestamp,
                          "\n\n**Hardware:** ", hardware_of(c), "\n\n**Program:** fathom ",
                          c.fathom_version, ", commit ", c.commit, "\n\n**Status:** ", kernels_ok,
                          "/23 kernels ok, ", bench_verdict_line(report),
                          "\n\n**Source:** [all_kernels.csv](all_kernels.csv), roofline in "
                          "[roofline.md](roofline.md)\n\n"));
}

void append_hardware(std::string& out, const Peaks& p) {
  MarkdownTable table({"Metric", "Value", "How"});
  const auto rate = [&](std::string_view name, MathUnit unit, std::string_view instruction) {
    const std::string_view runs_on = p.compute_name(unit);
    const std::string how = runs_on != name       ? str_cat("no such unit: runs as ", runs_on)
                            : instruction.empty() ? p.source
                                                  : str_cat(p.source, ", ", instruction);
    table.add({str_cat("Peak ", name, " compute"),
               str_cat(three_digits(p.compute_gflops(unit) * 1e-3), " TFLOP/s"), how});
  };
  rate("fp4", MathUnit::kFp4, "");
  rate("fp8", MathUnit::kFp8, "");
  rate("bf16", MathUnit::kBf16, p.bf16_unit);
  rate("int8", MathUnit::kInt8, p.int8_unit);
  rate("f32", MathUnit::kF32, p.f32_unit);
  table.add(
      {"Peak memory bandwidth, reading", str_cat(three_digits(p.read_gbps), " GB/s"), p.source});
  table.add({"Peak memory bandwidth, copying", str_cat(three_digits(p.copy_gbps), " GB/s"),
             str_cat(p.source, ", bytes read plus bytes written")});
  const auto ridge = [&](std::string_view name, MathUnit unit) {
    table.add({str_cat("Ridge point (", name, ")"),
               str_cat(three_digits(p.compute_gflops(unit) / p.read_gbps), " FLOP/byte"),
               "peak compute over reading"});
  };
  ridge("fp4", MathUnit::kFp4);
  ridge("fp8", MathUnit::kFp8);
  ridge("bf16", MathUnit::kBf16);
  ridge("f32", MathUnit::kF32);
  str_append(out, str_cat("## Hardware specifications\n\n", table.str(), "\n"));
}

// ---- the kernels ----

/// "memory", or with counts where rows differ: "memory 8, compute 4".
std::string bounds_of(std::span<const BenchRow* const> rows) {
  std::map<std::string, int> counts;
  for (const BenchRow* row : rows)
    ++counts[row->bound];
  if (counts.size() == 1) return counts.begin()->first;
  std::string out;
  for (const auto& [bound, count] : counts)
    str_append(out, str_cat(out.empty() ? "mixed: " : ", ", bound, " ", count));
  return out;
}

std::vector<const BenchRow*> rows_of(const BenchReport& report, std::string_view kernel) {
  std::vector<const BenchRow*> rows;
  for (const BenchRow& row : report.rows)
    if (row.kernel == kernel) rows.push_back(&row);
  return rows;
}

bool all_ok(std::span<const BenchRow* const> rows) {
  return !rows.empty() && std::all_of(rows.begin(), rows.end(), [](const BenchRow* row) {
    return row->status == RowStatus::kOk;
  });
}

int count_kernels_ok(const BenchReport& report) {
  int count = 0;
  for (const std::string& kernel : suite_kernels())
    count += all_ok(rows_of(report, kernel)) ? 1 : 0;
  return count;
}

std::string variants_of(std::span<const BenchRow* const> rows) {
  std::set<std::string> names;
  for (const BenchRow* row : rows)
    names.insert(row->variant);
  std::string out;
  for (const std::string& name : names)
    str_append(out, str_cat(out.empty() ? "" : ", ", name));
  return out;
}

void append_kernels(std::string& out, const BenchReport& report) {
  MarkdownTable table(
      {"#", "Kernel", "In fathom", "Category", "Bound", "Variants", "Rows", "File"});
  int number = 0;
  for (const std::string& name : published_reference_names()) {
    const std::string kernel(find_kernel(name)->info.name);
    const std::vector<const BenchRow*> rows = rows_of(report, kernel);
    const std::string file = kernel + ".csv";
    table.add({str_cat(++number), code(name), code(kernel), std::string(kernel_category(kernel)),
               bounds_of(rows), variants_of(rows), str_cat(rows.size()),
               str_cat("[", file, "](", file, ")")});
  }
  str_append(out, str_cat("## All 23 kernels\n\n", table.str(), "\n"));
  MarkdownTable others({"Kernel", "Category", "Bound", "Variants", "Rows", "File"});
  for (const std::string& kernel : companion_kernels()) {
    const std::vector<const BenchRow*> rows = rows_of(report, kernel);
    const std::string file = kernel + ".csv";
    others.add({code(kernel), std::string(kernel_category(kernel)), bounds_of(rows),
                variants_of(rows), str_cat(rows.size()), str_cat("[", file, "](", file, ")")});
  }
  str_append(out, str_cat("Companions: not among the 23, but they run ops of the layer below.\n\n",
                          others.str(), "\n"));
}

// ---- what is not there ----

/// Points of a kernel that have no row, by reason.
std::map<std::string, std::vector<std::string>> missing_points(const BenchReport& report,
                                                               std::string_view kernel) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const ReferencePoint& p : reference_points()) {
    const std::string_view limit = reference_limit(kernel, p);
    if (!limit.empty()) by_reason[std::string(limit)].push_back(p.name());
  }
  for (const AbsentRow& row : report.absent) {
    if (row.kernel != kernel) continue;
    const ReferencePoint point{row.phase, static_cast<int64_t>(row.b.value_or(0)),
                               static_cast<int64_t>(row.s.value_or(0))};
    by_reason[row.note].push_back(str_cat(point.name(), " of ", row.op));
  }
  return by_reason;
}

void append_left_out(std::string& out, const BenchReport& report) {
  MarkdownTable table({"Kernel", "No row for", "Reason"});
  std::vector<std::string> kernels = suite_kernels();
  for (const std::string& companion : companion_kernels())
    kernels.push_back(companion);
  for (const std::string& kernel : kernels) {
    for (const auto& [reason, points] : missing_points(report, kernel)) {
      std::string list;
      for (const std::string& point : points)
        str_append(list, str_cat(list.empty() ? "" : ", ", point));
      table.add({code(kernel), list, reason});
    }
  }
  str_append(out, str_cat("## Limits of kernels\n\n", table.str(), "\n"));
}

Status append_model(std::string& out) {
  FATHOM_ASSIGN(const Preset preset, find_preset(kPreset));
  const ModelConfig& c = preset.config;
  MarkdownTable table({"Parameter", "Value", "Symbol"});
  const std::tuple<const char*, int64_t, const char*> lines[] = {
      {"hidden_size", c.hidden_size, "H"},
      {"q_lora_rank", c.q_lora_rank, "Lq"},
      {"kv_lora_rank", c.kv_lora_rank, "Lkv"},
      {"num_attention_heads", c.num_attention_heads, "Nh"},
      {"qk_nope_head_dim", c.qk_nope_head_dim, "Dn"},
      {"qk_rope_head_dim", c.qk_rope_head_dim, "Dr"},
      {"v_head_dim", c.v_head_dim, "Dv"},
      {"n_routed_experts", c.n_routed_experts, "E"},
      {"num_experts_per_tok", c.num_experts_per_tok, "K"},
      {"moe_intermediate_size", c.moe_intermediate_size, "I"}};
  for (const auto& [name, value, symbol] : lines)
    table.add({name, str_cat(value), symbol});
  str_append(out, str_cat("## Model configuration\n\n", code(kPreset), "\n\n", table.str(), "\n"));
  return {};
}

// ---- the layer ----

/// (p90 - p10) / median, in percent: how far the times of a row lie apart.
std::string spread_of(const BenchRow& row) {
  if (!row.us_p10 || !row.us_p90) return "one call";
  return three_digits((*row.us_p90 - *row.us_p10) / *row.us_median * 100);
}

std::vector<std::string> cells_of(const BenchRow& row) {
  return {code(row.kernel),
          row.op,
          three_digits(*row.us_median * 1e-3),
          spread_of(row),
          three_digits(*row.tflops * 1e3),
          three_digits(*row.gbps),
          three_digits(*row.pct_of_roof),
          row.bound,
          std::string(kernel_category(row.kernel))};
}

const std::vector<std::string> kColumns = {"Kernel",   "Op",      "Latency (ms)",
                                           "Spread %", "GFLOP/s", "BW (GB/s)",
                                           "Roof %",   "Bound",   "Category"};

/// Rows of the point that are not of the layer: other kernels for the same work.
std::string other_rows(const BenchReport& report,
                       const ReferencePoint& point,
                       std::span<const BenchRow* const> layer) {
  MarkdownTable table(kColumns);
  for (const BenchRow& row : report.rows) {
    const bool here = row.b == static_cast<double>(point.batch) &&
                      row.s == static_cast<double>(point.seq) && row.phase == point.phase;
    const bool in_layer = std::find(layer.begin(), layer.end(), &row) != layer.end();
    const bool own_name = row.case_name == reference_case_name(row.op, point);
    if (here && own_name && !in_layer && row.status == RowStatus::kOk) table.add(cells_of(row));
  }
  return table.empty() ? "" : str_cat("Not in the layer:\n\n", table.str(), "\n");
}

Status append_point(std::string& out,
                    const BenchReport& report,
                    const ReferencePoint& point,
                    std::string_view title) {
  FATHOM_ASSIGN(const LayerTime time, layer_time(report.rows, point));
  std::vector<std::string> header = kColumns;
  header.push_back("Share %");
  MarkdownTable table(header);
  for (const BenchRow* row : time.rows) {
    std::vector<std::string> cells = cells_of(*row);
    cells.push_back(three_digits(*row->us_median / time.us * 100));
    table.add(std::move(cells));
  }
  str_append(out, str_cat("## ", title, "\n\nThe layer takes ", three_digits(time.us * 1e-3),
                          " ms.\n\n", table.str(), "\n"));
  out += other_rows(report, point, time.rows);
  return {};
}

void append_layer_text(std::string& out) {
  const auto ops = [](const ReferencePoint& point) {
    std::string text;
    for (const LayerOp& op : layer_ops(point))
      str_append(text, str_cat(text.empty() ? "" : ", ", op.op, " (", code(op.kernel), ")"));
    return text;
  };
  str_append(
      out,
      str_cat("## The layer\n\nLayer time is the sum of the medians of the ops of one MoE layer, "
              "in the order of the model's code: nothing overlaps, nothing is counted twice. Each "
              "token has ",
              "8 of 256 experts, chosen evenly, and the shared expert. Decode reads ",
              kReferenceContext,
              " keys of each sequence.\n\nDecode of one sequence: ", ops({"decode", 1, 1}),
              ".\n\nDecode of 32 and more differs by: fused_qkv_a_proj and "
              "gate in `bf16_gemm`.\n\nPrefill: ",
              ops({"prefill", 1, 1024}), ".\n\n"));
}

Status append_scaling(std::string& out,
                      const BenchReport& report,
                      std::string_view title,
                      std::string_view column,
                      std::string_view phase) {
  FATHOM_ASSIGN(const Preset preset, find_preset(kPreset));
  const int64_t layers = preset.config.num_hidden_layers;
  MarkdownTable table({std::string(column), "Total layer time (ms)", "Throughput (tokens/s)",
                       str_cat("tokens/s of ", layers, " such layers")});
  for (const ReferencePoint& p : reference_points()) {
    if (p.phase != phase || (phase == "prefill" && p.batch != 1)) continue;
    FATHOM_ASSIGN(const LayerTime time, layer_time(report.rows, p));
    const double rate = static_cast<double>(p.tokens()) / (time.us * 1e-6);
    table.add({str_cat(phase == "decode" ? p.batch : p.seq), three_digits(time.us * 1e-3),
               three_digits(rate), three_digits(rate / static_cast<double>(layers))});
  }
  str_append(out, str_cat("### ", title, "\n\n", table.str(), "\n"));
  return {};
}

// ---- how to run ----

void append_how_to_run(std::string& out, const BenchReport& report) {
  std::string all;
  for (const std::string& name : published_reference_names())
    str_append(all, str_cat(all.empty() ? "" : ",", name));
  const std::string first = all.substr(0, all.find(',', all.find(',') + 1));
  str_append(out,
             str_cat("## How to run\n\n```bash\n# This report\n", report.command,
                     "\n\n# Its cases, without running them\nfathom bench kernel --suite ",
                     kReferenceSuite, " --list\n\n# Some kernels\nfathom bench kernel --suite ",
                     kReferenceSuite, " --kernels ", first,
                     "\n\n# The roofline again, as SVG or as a page\n"
                     "fathom roofline all_kernels.csv -o svg --out-file roofline.svg\n"
                     "fathom roofline all_kernels.csv -o md\n\n"
                     "# Against another run\nfathom bench compare all_kernels.csv "
                     "OTHER/all_kernels.csv --fail-slower 5%\n```\n\n"));
  MarkdownTable files({"File", "Holds"});
  files.add({"all_kernels.csv", str_cat(report.rows.size(), " rows, one schema for all kernels")});
  files.add({"KERNEL.csv", "the rows of one kernel"});
  files.add({"all_kernels.json", "the same rows and the peaks"});
  files.add({"peaks.json", "the peaks, for `fathom roofline --peaks`"});
  files.add({"roofline.svg, roofline.md", "the picture, and what bounds what"});
  str_append(out, str_cat("## Files\n\n", files.str()));
}

}  // namespace

bool is_whole_reference_suite(const BenchReport& report) {
  return report.suite == kReferenceSuite && report.whole_suite;
}

Result<std::string> write_reference_summary(const BenchReport& report) {
  std::string out;
  append_head(out, report, count_kernels_ok(report));
  append_hardware(out, report.peaks);
  append_kernels(out, report);
  append_left_out(out, report);
  FATHOM_TRY(append_model(out));
  append_layer_text(out);
  FATHOM_TRY(append_point(out, report, {"decode", 1, 1}, "Decode phase (B=1, S=1)"));
  FATHOM_TRY(append_point(out, report, {"decode", 128, 1}, "Decode phase (B=128, S=1)"));
  FATHOM_TRY(append_point(out, report, {"prefill", 1, 1024}, "Prefill phase (B=1, S=1024)"));
  out += "## Scaling analysis\n\n";
  FATHOM_TRY(append_scaling(out, report, "Batch scaling (decode, S=1)", "B", "decode"));
  FATHOM_TRY(append_scaling(out, report, "Sequence scaling (prefill, B=1)", "S", "prefill"));
  append_how_to_run(out, report);
  return out;
}

}  // namespace fathom
