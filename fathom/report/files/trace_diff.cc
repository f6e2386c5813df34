#include "fathom/report/files/trace_diff.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "fathom/base/str_cat.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

using Rows = std::vector<const OpRow*>;

std::map<std::string, Rows> by_phase(const std::vector<OpRow>& rows,
                                     std::vector<std::string>& order) {
  std::map<std::string, Rows> out;
  for (const OpRow& row : rows) {
    if (std::find(order.begin(), order.end(), row.phase) == order.end()) order.push_back(row.phase);
    out[row.phase].push_back(&row);
  }
  return out;
}

OpDifference difference(const OpRow& row, std::string what) {
  return {row.phase, row.step, row.index, row.scope, row.op, std::move(what)};
}

// The first field in which two calls are not the same work; empty if they are.
std::string shape_difference(const OpRow& a, const OpRow& b) {
  const auto other = [](std::string_view field, std::string_view x, std::string_view y) {
    return str_cat(field, ": ", x.empty() ? "none" : x, " in A, ", y.empty() ? "none" : y, " in B");
  };
  if (a.op != b.op) return other("op", a.op, b.op);
  if (a.scope != b.scope) return other("scope", a.scope, b.scope);
  if (a.kernel != b.kernel) return other("kernel", a.kernel, b.kernel);
  if (a.inputs != b.inputs) return other("reads", a.inputs, b.inputs);
  if (a.outputs != b.outputs) return other("writes", a.outputs, b.outputs);
  if (a.layers != b.layers) return other("layers", a.layers, b.layers);
  return {};
}

// The first statistic beyond the tolerance. Least, most and mean are held against the largest
// number of the tensor, the norm against itself.
std::string value_difference(const OpRow& a, const OpRow& b, double tolerance) {
  for (size_t i = 0; i < std::min(a.statistics.size(), b.statistics.size()); ++i) {
    const TensorStatistics& x = a.statistics[i];
    const TensorStatistics& y = b.statistics[i];
    if (x.non_finite != y.non_finite) {
      return str_cat(a.written[i], ": ", x.non_finite, " numbers are not finite in A, ",
                     y.non_finite, " in B");
    }
    const double size =
        std::max({std::fabs(x.min), std::fabs(x.max), std::fabs(y.min), std::fabs(y.max)});

    const struct {
      std::string_view name;
      double a, b, scale;
    } figures[] = {{"min", x.min, y.min, size},
                   {"max", x.max, y.max, size},
                   {"mean", x.mean, y.mean, size},
                   {"l2", x.l2, y.l2, std::max(x.l2, y.l2)}};

    for (const auto& f : figures) {
      const double apart = std::fabs(f.a - f.b);
      if (apart <= tolerance * f.scale) continue;
      return str_cat(a.written[i], ": ", f.name, " is ", f.a, " in A, ", f.b, " in B, ",
                     format_fixed(100 * apart / f.scale, 3), " % apart");
    }
  }
  return {};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct Times {
  std::vector<double> a, b;
};

void compare_times(const std::string& phase, const Rows& a, const Rows& b, TraceDifference& out) {
  std::map<std::pair<std::string, std::string>, Times> ops;
  double total = 0;
  for (const OpRow* row : a) {
    if (!row->us) continue;
    ops[{row->op, row->kernel}].a.push_back(*row->us);
    total += *row->us;
  }
  for (const OpRow* row : b)
    if (row->us) ops[{row->op, row->kernel}].b.push_back(*row->us);
  for (const auto& [key, times] : ops) {
    if (times.a.empty() || times.b.empty()) continue;
    double sum = 0;
    for (double us : times.a)
      sum += us;
    out.times.push_back({.phase = phase,
                         .op = key.first,
                         .kernel = key.second,
                         .calls = static_cast<int64_t>(times.a.size()),
                         .us_a = median(times.a),
                         .us_b = median(times.b),
                         .share = total > 0 ? sum / total : 0});
  }
}

// Rows pair up by place; after the first pair that is not the same work, places mean nothing.
void compare_phase(const Rows& a, const Rows& b, const DiffOptions& options, TraceDifference& out) {
  const size_t common = std::min(a.size(), b.size());
  for (size_t i = 0; i < common; ++i) {
    if (std::string what = shape_difference(*a[i], *b[i]); !what.empty()) {
      out.shape.push_back(difference(*a[i], std::move(what)));
      return;
    }
    if (a[i]->variant != b[i]->variant) ++out.variants;
    if (a[i]->statistics.empty() || b[i]->statistics.empty()) continue;
    ++out.compared_values;
    if (std::string what = value_difference(*a[i], *b[i], options.tolerance); !what.empty()) {
      out.values.push_back(difference(*a[i], std::move(what)));
    }
  }
  if (a.size() == b.size()) return;
  const OpRow& first = a.size() > common ? *a[common] : *b[common];
  out.shape.push_back(
      difference(first, str_cat("only in ", a.size() > common ? "A" : "B", ", which has ",
                                std::max(a.size(), b.size()), " rows; the other has ", common)));
}

void append_first(std::string_view title, const std::vector<OpDifference>& list, std::string& out) {
  str_append(out, str_cat("\n## ", title, "\n\n"));
  if (list.empty()) {
    out += "None.\n";
    return;
  }
  constexpr size_t kShown = 10;
  MarkdownTable table({"phase", "step", "place", "scope", "op", "difference"});
  for (size_t i = 0; i < std::min(kShown, list.size()); ++i) {
    const OpDifference& d = list[i];
    table.add({d.phase, str_cat(d.step), str_cat(d.index), d.scope.empty() ? "none" : d.scope, d.op,
               d.what});
  }
  out += table.str();
  if (list.size() > kShown) str_append(out, str_cat("\nand ", list.size() - kShown, " more.\n"));
}

}  // namespace

bool TraceDifference::failed(const DiffOptions& options) const {
  const bool slower = std::any_of(times.begin(), times.end(), [&](const SlowerOp& t) {
    return t.share >= options.min_share && t.ratio() > 1 + options.fail_slower;
  });
  return slower || !shape.empty() || !values.empty();
}

TraceDifference diff_traces(const std::vector<OpRow>& a,
                            const std::vector<OpRow>& b,
                            const DiffOptions& options) {
  TraceDifference out;
  out.rows_a = static_cast<int64_t>(a.size());
  out.rows_b = static_cast<int64_t>(b.size());
  std::vector<std::string> phases;
  std::map<std::string, Rows> in_a = by_phase(a, phases);
  std::map<std::string, Rows> in_b = by_phase(b, phases);
  for (const std::string& phase : phases) {
    compare_phase(in_a[phase], in_b[phase], options, out);
    compare_times(phase, in_a[phase], in_b[phase], out);
  }
  std::stable_sort(out.times.begin(), out.times.end(),
                   [](const SlowerOp& x, const SlowerOp& y) { return x.ratio() > y.ratio(); });
  return out;
}

std::string write_trace_diff(const TraceDifference& d,
                             const DiffOptions& options,
                             std::string_view name_a,
                             std::string_view name_b) {
  std::string out =
      str_cat("# Trace diff\n\nA: ", name_a, ", ", d.rows_a, " rows. B: ", name_b, ", ", d.rows_b,
              " rows. ", d.variants, " rows ran another variant of the same kernel; values of ",
              d.compared_values, " rows were compared.\n");
  append_first("First op with other work, of each phase", d.shape, out);
  append_first(
      str_cat("Ops with other values (beyond ", format_fixed(100 * options.tolerance, 3), " %)"),
      d.values, out);
  str_append(out, str_cat("\n## Time of an op, B over A (slower beyond ",
                          format_fixed(100 * options.fail_slower, 1), " % fails)\n\n"));
  if (d.times.empty()) return out + "Neither recording has times that the other has too.\n";
  MarkdownTable table(
      {"phase", "op", "kernel", "calls", "us in A", "us in B", "ratio", "share of A", "verdict"});
  for (const SlowerOp& t : d.times) {
    const bool counts = t.share >= options.min_share;
    const bool slower = t.ratio() > 1 + options.fail_slower;
    table.add({t.phase, t.op, t.kernel, str_cat(t.calls), format_fixed(t.us_a, 2),
               format_fixed(t.us_b, 2), format_fixed(t.ratio(), 3),
               format_fixed(100 * t.share, 2) + " %",
               !counts  ? "too small to judge"
               : slower ? "slower"
                        : "ok"});
  }
  return out + table.str();
}

}  // namespace fathom
