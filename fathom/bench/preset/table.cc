#include "fathom/bench/preset/table.h"

#include <algorithm>

#include "fathom/base/str_cat.h"
#include "fathom/bench/files/report.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

std::string label_of(const PresetCall& c) {
  return str_cat(c.part, c.part.empty() ? "" : ".", c.op, " (", c.kernel(), ")");
}

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts)
    str_append(out, str_cat(out.empty() ? "" : ", ", text));
  return out;
}

std::string percent(double part, double whole) {
  return whole > 0 ? three_digits(part / whole * 100) : "0";
}

std::string title_of(const StepPoint& p) {
  const std::string_view plural = p.batch == 1 ? "" : "s";
  if (p.phase == "decode") {
    return str_cat("Decode, ", p.batch, " request", plural, ", ", p.keys, " keys each");
  }
  if (p.phase == "draft") {
    return str_cat("Draft head, ", p.batch, " request", plural, ", ", p.keys, " keys each");
  }
  const std::string tokens = str_cat("Prefill, ", p.batch, " x ", p.seq, " tokens");
  return p.keys == 0 ? tokens : str_cat(tokens, " after ", p.keys, " in the cache");
}

std::string formats_of(const BenchRow& row) {
  return row.dtype_w.empty() ? row.dtype_a : str_cat(row.dtype_w, " x ", row.dtype_a);
}

std::string cover_text(const PresetStep& step, std::span<const BenchRow> rows) {
  const StepCover cover = cover_of(step, rows);
  const int64_t all = step.bytes();
  const std::string share =
      cover.bytes == all ? "100"
                         : percent(static_cast<double>(cover.bytes), static_cast<double>(all));
  return str_cat("Rows cover ", format_count(cover.bytes), " of the ", format_count(all),
                 " bytes of the step (", share, " %): weights, cache and activations of ",
                 step.num_calls(),
                 " calls. Left: ", cover.left.empty() ? "none" : joined(cover.left), ".\n\n");
}

/// Rates over one axis of the steps of a phase. A step without a time has no line; its own table
/// says what is missing.
std::string scaling_table(std::span<const PresetStep> steps,
                          std::span<const BenchRow> rows,
                          std::string_view phase) {
  const bool decode = phase == "decode";
  MarkdownTable table({decode ? "B" : "S", "Layer time (ms)", "Step time (ms)",
                       "Throughput (tokens/s)", "GB a step"});
  for (const PresetStep& step : steps) {
    const StepPoint& p = step.point;
    if (p.phase != phase || (!decode && p.keys > 0)) continue;
    const Result<StepTime> time = step_time(step, rows);
    if (!time.ok()) continue;
    table.add({str_cat(decode ? p.batch : p.seq), three_digits(time->layer_us * 1e-3),
               three_digits(time->us * 1e-3),
               three_digits(static_cast<double>(p.batch * p.seq) / (time->us * 1e-6)),
               three_digits(static_cast<double>(step.bytes()) * 1e-9)});
  }
  return table.empty() ? std::string{} : table.str();
}

}  // namespace

std::vector<const BenchRow*> rows_of(const PresetStep& step, std::span<const BenchRow> rows) {
  std::vector<const BenchRow*> out;
  for (const PresetCall& c : step.calls) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const BenchRow& r) {
      return r.case_name == c.case_name && r.kernel == c.kernel() && r.status == RowStatus::kOk &&
             r.us_median;
    });
    out.push_back(row == rows.end() ? nullptr : &*row);
  }
  return out;
}

StepCover cover_of(const PresetStep& step, std::span<const BenchRow> rows) {
  const std::vector<const BenchRow*> found = rows_of(step, rows);
  StepCover cover;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != nullptr) {
      cover.bytes += step.calls[i].bytes();
    } else {
      cover.left.push_back(label_of(step.calls[i]));
    }
  }
  return cover;
}

Result<StepTime> step_time(const PresetStep& step, std::span<const BenchRow> rows) {
  const std::vector<const BenchRow*> found = rows_of(step, rows);
  StepTime time;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == nullptr) continue;
    time.us += static_cast<double>(step.calls[i].count) * *found[i]->us_median;
    time.layer_us += static_cast<double>(step.calls[i].in_layer) * *found[i]->us_median;
  }
  const StepCover cover = cover_of(step, rows);
  if (cover.left.empty()) return time;
  return not_found(str_cat("the step ", step.point.name(), " of ", step.preset,
                           " has no time: no row of ", joined(cover.left)));
}

std::string write_step_table(const PresetStep& step, std::span<const BenchRow> rows) {
  const Result<StepTime> time = step_time(step, rows);
  const std::vector<const BenchRow*> found = rows_of(step, rows);
  std::vector<std::string> header{"Kernel", "Op",           "In",      "Formats",
                                  "Calls",  "Latency (us)", "All (ms)"};
  if (time.ok()) header.emplace_back("Time %");
  header.insert(header.end(), {"Bytes %", "GB/s", "Roof %", "Bound"});
  MarkdownTable table(std::move(header));
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == nullptr) continue;
    const PresetCall& c = step.calls[i];
    const BenchRow& row = *found[i];
    const double all_us = static_cast<double>(c.count) * *row.us_median;
    std::vector<std::string> cells{str_cat("`", c.kernel(), "`"),
                                   c.op,
                                   c.part,
                                   formats_of(row),
                                   str_cat(c.count),
                                   three_digits(*row.us_median),
                                   three_digits(all_us * 1e-3)};
    if (time.ok()) cells.push_back(percent(all_us, time->us));
    cells.insert(
        cells.end(),
        {percent(static_cast<double>(c.bytes()), static_cast<double>(step.bytes())),
         three_digits(row.gbps.value_or(0)), three_digits(row.pct_of_roof.value_or(0)), row.bound});
    table.add(std::move(cells));
  }
  const std::string takes =
      time.ok()
          ? str_cat("The step takes ", three_digits(time->us * 1e-3), " ms, call after call. ")
          : std::string("The step has no time: not every call has one. ");
  return str_cat("### ", title_of(step.point), "\n\n", takes, cover_text(step, rows),
                 table.empty() ? "" : table.str() + "\n");
}

std::string write_preset_tables(std::span<const PresetStep> steps, std::span<const BenchRow> rows) {
  std::string out;
  const std::pair<std::string_view, std::string_view> axes[] = {
      {"decode", "### Batch scaling (decode, S=1)"},
      {"prefill", "### Sequence scaling (prefill, B=1)"}};
  for (const auto& [phase, title] : axes) {
    const std::string table = scaling_table(steps, rows, phase);
    if (!table.empty()) str_append(out, str_cat(title, "\n\n", table, "\n"));
  }
  for (const PresetStep& step : steps)
    out += write_step_table(step, rows);
  return out;
}

}  // namespace fathom
