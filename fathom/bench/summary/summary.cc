#include "fathom/bench/summary/summary.h"

#include <algorithm>
#include <map>
#include <set>

#include "fathom/bench/files/report.h"
#include "fathom/bench/preset/table.h"
#include "fathom/bench/suites/reference_names.h"
#include "fathom/bench/suites/suites.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/models/config/presets.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

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
      str_cat(c.threads, " threads on ", c.host_cores, " cores, ", format_memory(c.host_mem_bytes));
  if (c.backend == "cpu") return str_cat(c.device_name, ", ", c.host_isa, ", ", host);
  return str_cat(c.device_name, ", ", c.arch, "; host ", c.host_cpu, ", ", host);
}

void append_head(std::string& out,
                 const BenchReport& report,
                 std::string_view of,
                 std::string_view status) {
  const BenchConditions& c = report.conditions;
  str_append(out, str_cat("# Kernel benchmark of ", of, "\n\n**Generated:** ", c.timestamp,
                          "\n\n**Hardware:** ", hardware_of(c), "\n\n**Program:** fathom ",
                          c.fathom_version, ", commit ", c.commit, "\n\n**Status:** ", status,
                          bench_verdict_line(report),
                          "\n\n**Source:** [all_kernels.csv](all_kernels.csv)\n\n"));
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

/// A row of the published benchmark, not of the preset's own calls.
bool is_published(const BenchRow& row) {
  return row.case_name.empty() || row.case_name.starts_with("reference_");
}

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
    if (row.kernel == kernel && is_published(row)) rows.push_back(&row);
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

/// Bound, variants, number of rows and file of a kernel; a run that ended early has none of some.
std::vector<std::string> row_cells(const BenchReport& report, const std::string& kernel) {
  const std::vector<const BenchRow*> rows = rows_of(report, kernel);
  if (rows.empty()) return {"no row", "no row", "0", "none"};
  const std::string file = kernel + ".csv";
  return {bounds_of(rows), variants_of(rows), str_cat(rows.size()),
          str_cat("[", file, "](", file, ")")};
}

void append_kernels(std::string& out, const BenchReport& report) {
  const auto with_rows = [&](std::vector<std::string> cells, const std::string& kernel) {
    for (std::string& cell : row_cells(report, kernel))
      cells.push_back(std::move(cell));
    return cells;
  };
  MarkdownTable table(
      {"#", "Kernel", "In fathom", "Category", "Bound", "Variants", "Rows", "File"});
  int number = 0;
  for (const std::string& name : published_reference_names()) {
    const std::string kernel(find_kernel(name)->info.name);
    table.add(with_rows(
        {str_cat(++number), code(name), code(kernel), std::string(kernel_category(kernel))},
        kernel));
  }
  str_append(out, str_cat("## All 23 kernels\n\n", table.str(), "\n"));
  MarkdownTable others({"Kernel", "Category", "Bound", "Variants", "Rows", "File"});
  for (const std::string& kernel : companion_kernels()) {
    others.add(with_rows({code(kernel), std::string(kernel_category(kernel))}, kernel));
  }
  str_append(out,
             str_cat("Companions: not among the 23, at the same points.\n\n", others.str(), "\n"));
}

// ---- what is not there ----

/// Points of a kernel that have no row, by reason.
std::map<std::string, std::vector<std::string>> missing_points(const BenchReport& report,
                                                               std::string_view kernel) {
  std::map<std::string, std::vector<std::string>> by_reason;
  const ReferenceLimit* limit = all_cases().reference_limit(kernel);
  for (const ReferencePoint& p : reference_points())
    if (limit != nullptr && limit->leaves_out(p))
      by_reason[std::string(limit->why)].push_back(p.name());
  for (const AbsentRow& row : report.absent) {
    if (row.kernel != kernel || !is_published(row)) continue;
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

Status append_model(std::string& out, std::string_view name) {
  FATHOM_ASSIGN(const Preset preset, find_preset(name));
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
  for (const auto& [parameter, value, symbol] : lines)
    table.add({parameter, str_cat(value), symbol});
  str_append(out, str_cat("## Model configuration\n\n", code(name), "\n\n", table.str(), "\n"));
  return {};
}

// ---- the rows of the published benchmark ----

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

/// The published cases of a point, in the order of the suite.
std::vector<const Case*> cases_at(const ReferencePoint& point) {
  std::vector<std::string> kernels = suite_kernels();
  for (std::string& companion : companion_kernels())
    kernels.push_back(std::move(companion));
  std::vector<const Case*> cases;
  for (const std::string& kernel : kernels) {
    for (const Case* c : all_cases().of(kernel)) {
      const bool here = c->spec.name == reference_case_name(c->spec.op, point);
      if (here && c->spec.suite == kReferenceSuite) cases.push_back(c);
    }
  }
  return cases;
}

/// Why a case has no time: what its row says, what it was left out for, or that nothing came of it.
std::string why_no_time(const BenchReport& report, const Case& c) {
  const auto is_of_case = [&](const BenchRow& r) {
    return r.kernel == c.kernel && r.case_name == c.spec.name;
  };
  for (const BenchRow& row : report.rows)
    if (is_of_case(row))
      return str_cat(row_status_name(row.status), row.note.empty() ? "" : ", ", row.note);
  for (const AbsentRow& row : report.absent)
    if (is_of_case(row)) return row.note;
  return "no row";
}

/// Every published row of the point, and under them what has no time.
void append_point(std::string& out,
                  const BenchReport& report,
                  const ReferencePoint& point,
                  std::string_view title) {
  MarkdownTable table({"Kernel", "Op", "Latency (ms)", "Spread %", "GFLOP/s", "BW (GB/s)", "Roof %",
                       "Bound", "Category"});
  std::string missing;
  for (const Case* c : cases_at(point)) {
    const auto row = std::find_if(report.rows.begin(), report.rows.end(), [&](const BenchRow& r) {
      return r.kernel == c->kernel && r.case_name == c->spec.name && r.status == RowStatus::kOk &&
             r.us_median;
    });
    if (row != report.rows.end()) {
      table.add(cells_of(*row));
    } else {
      str_append(missing,
                 str_cat("- ", c->spec.op, " (", c->kernel, "): ", why_no_time(report, *c), "\n"));
    }
  }
  str_append(out, str_cat("## ", title, "\n\n", table.empty() ? "" : table.str() + "\n"));
  if (!missing.empty()) str_append(out, str_cat("Without a time:\n\n", missing, "\n"));
}

constexpr std::string_view kPublishedText =
    "# The rows of the published benchmark\n\nShapes and formats are the benchmark's: "
    "projections of attention in NVFP4, absorbed products in FP8, experts chosen evenly, 1,024 "
    "keys a sequence in decode. They are no model's layer, so nothing is summed; what the preset "
    "runs is in its own table below.\n\n";

std::string own_table_head(std::string_view preset) {
  return str_cat(
      "# The preset's own table: ", preset,
      "\n\nEvery call of a dry run of the preset's graph, timed as a case of the same kernel, "
      "operands, formats and sizes. Times are sums of medians, call after call: nothing overlaps. "
      "Layer time is that of the first layer with experts. Tokens choose at random: so many "
      "experts are read as are expected.\n\n");
}

// ---- how to run ----

void append_how_to_run(std::string& out, const BenchReport& report) {
  std::string all;
  for (const std::string& name : published_reference_names())
    str_append(all, str_cat(all.empty() ? "" : ",", name));
  const std::string first = all.substr(0, all.find(',', all.find(',') + 1));
  str_append(
      out, str_cat("## How to run\n\n```bash\n# This report\n", report.command,
                   "\n\n# Its cases, without running them\nfathom bench kernel --suite ",
                   kReferenceSuite, " --list\n\n# Some kernels\nfathom bench kernel --suite ",
                   kReferenceSuite, " --kernels ", first,
                   "\n\n# The preset's own calls alone, at other batches\nfathom bench kernel --as "
                   "deepseek-r1-nvfp4 --phase decode --batch 4,16",
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
  FATHOM_ASSIGN(const Suite suite, find_suite(kReferenceSuite));
  std::string out;
  append_head(out, report, "DeepSeek-R1-NVFP4",
              str_cat(count_kernels_ok(report), "/23 kernels ok, "));
  append_hardware(out, report.peaks);
  out += kPublishedText;
  append_kernels(out, report);
  append_left_out(out, report);
  FATHOM_TRY(append_model(out, suite.preset));
  append_point(out, report, {"decode", 1, 1}, "Decode phase (B=1, S=1)");
  append_point(out, report, {"decode", 128, 1}, "Decode phase (B=128, S=1)");
  append_point(out, report, {"prefill", 1, 1024}, "Prefill phase (B=1, S=1024)");
  str_append(out,
             str_cat(own_table_head(suite.preset), write_preset_tables(report.steps, report.rows)));
  append_how_to_run(out, report);
  return out;
}

Result<std::string> write_preset_summary(const BenchReport& report) {
  std::string out;
  append_head(out, report, report.suite, "");
  append_hardware(out, report.peaks);
  FATHOM_TRY(append_model(out, report.suite));
  return str_cat(out, own_table_head(report.suite), write_preset_tables(report.steps, report.rows));
}

}  // namespace fathom
