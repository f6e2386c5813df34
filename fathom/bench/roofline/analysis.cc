#include "fathom/bench/roofline/analysis.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "fathom/bench/files/report.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

constexpr size_t kMostLosses = 12;
constexpr double kAtRoof = 80;  // percent

std::string ms(double us) {
  return three_digits(us * 1e-3);
}

std::string percent(double part, double whole) {
  return whole > 0 ? three_digits(part / whole * 100) : "0";
}

std::string flop_per_byte(double value) {
  return str_cat(three_digits(value), " FLOP/byte");
}

void append_ceilings(std::string& out, const Peaks& p) {
  MarkdownTable table({"Ceiling", "Rate", "Ridge (FLOP/byte)"});
  const std::pair<std::string_view, double> units[] = {{"fp4", p.fp4_gflops},
                                                       {"fp8", p.fp8_gflops},
                                                       {"int8", p.int8_gops},
                                                       {"bf16", p.bf16_gflops},
                                                       {"f32", p.f32_gflops}};
  for (const auto& [name, gflops] : units) {
    if (gflops <= 0) continue;
    table.add({std::string(name), str_cat(three_digits(gflops * 1e-3), " TFLOP/s"),
               three_digits(gflops / p.read_gbps)});
  }
  table.add(
      {"memory, reading", str_cat(three_digits(p.read_gbps), " GB/s"), "where it meets them"});
  table.add(
      {"memory, copying", str_cat(three_digits(p.copy_gbps), " GB/s"), "where it meets them"});
  str_append(out, str_cat("## Ceilings\n\n", p.device, ", ", p.source, "\n\n", table.str(), "\n"));
}

struct Sum {
  int64_t count = 0;
  double us = 0;
  double roof_us = 0;
};

void append_groups(std::string& out, std::span<const RooflinePoint> points) {
  MarkdownTable table({"Group", "Bound", "Rows", "Time (ms)", "Share %", "Roofs (ms)", "Roof %"});
  for (const std::string& group : groups_of(points)) {
    std::map<std::string, Sum> bounds;
    Sum all;
    for (const RooflinePoint& p : points) {
      if (p.group != group) continue;
      for (Sum* sum : {&bounds[p.bound], &all}) {
        ++sum->count;
        sum->us += p.us;
        sum->roof_us += p.roof_us;
      }
    }
    bounds["all"] = all;
    for (const auto& [bound, sum] : bounds) {
      table.add({group, bound, str_cat(sum.count), ms(sum.us), percent(sum.us, all.us),
                 ms(sum.roof_us), percent(sum.roof_us, sum.us)});
    }
  }
  str_append(out, str_cat("## What bounds what\n\nA row is bound by latency where its roof is "
                          "below one microsecond. Times of a group include kernels that do the "
                          "same work in other ways.\n\n",
                          table.str(), "\n"));
}

void append_losses(std::string& out, std::span<const RooflinePoint> points, const Peaks& peaks) {
  std::vector<const RooflinePoint*> order;
  for (const RooflinePoint& p : points)
    order.push_back(&p);
  const auto loss = [](const RooflinePoint* p) {
    return p->us > 0 ? p->share * (1 - std::min(1.0, p->roof_us / p->us)) : 0;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto* a, const auto* b) { return loss(a) > loss(b); });
  order.resize(std::min(order.size(), kMostLosses));
  MarkdownTable table({"Kernel", "Op", "Group", "Time (ms)", "Roof (ms)", "Roof %",
                       "Lost % of group", "What would move it"});
  for (const RooflinePoint* p : order) {
    table.add({str_cat("`", p->kernel, "`"), p->op, p->group, ms(p->us), ms(p->roof_us),
               three_digits(p->percent()), three_digits(loss(p) * 100), remedy_for(*p, peaks)});
  }
  str_append(out, str_cat("## Where time is lost\n\nThe rows farthest from their roofs, weighed by "
                          "their share of the time of the group.\n\n",
                          table.str(), "\n"));
}

void append_rows(std::string& out, std::span<const RooflinePoint> points, const Peaks& peaks) {
  out += "## Every row\n\n";
  for (const std::string& group : groups_of(points)) {
    MarkdownTable table({"Kernel", "Op", "FLOP/byte", "GFLOP/s", "GB/s", "Time (ms)", "Roof %",
                         "Bound", "What would move it"});
    for (const RooflinePoint& p : points) {
      if (p.group != group) continue;
      table.add({str_cat("`", p.kernel, "`"), p.op, three_digits(p.intensity()),
                 three_digits(p.gflops()), three_digits(p.gbps()), ms(p.us),
                 three_digits(p.percent()), p.bound, remedy_for(p, peaks)});
    }
    str_append(out, str_cat("### ", group, "\n\n", table.str(), "\n"));
  }
}

/// For a product whose weights are most of its bytes: tokens at which it meets the ridge.
std::string tokens_to_ridge(const RooflinePoint& p, double ridge) {
  if (p.tokens <= 0 || p.intensity() <= 0 || p.copies) return {};
  const double tokens = static_cast<double>(p.tokens) * ridge / p.intensity();
  if (!(tokens > static_cast<double>(p.tokens)) || tokens > 1e6) return {};
  return str_cat("; at about ", static_cast<int64_t>(std::ceil(tokens)),
                 " tokens arithmetic binds instead, if the bytes stay");
}

}  // namespace

std::string remedy_for(const RooflinePoint& p, const Peaks& peaks) {
  const double at = p.percent();
  if (p.bound == "latency") {
    return str_cat("starting it costs more than its work (", three_digits(p.roof_us), " of ",
                   three_digits(p.us), " us): one launch for it and a neighbour");
  }
  if (p.bound == "memory") {
    const double gbps = p.copies ? peaks.copy_gbps : peaks.read_gbps;
    const double ridge = gbps > 0 ? peaks.compute_gflops(p.unit) / gbps : 0;
    const bool product = p.intensity() >= 1;
    const std::string more = product ? tokens_to_ridge(p, ridge) : std::string();
    if (at >= kAtRoof) {
      return str_cat(
          "at the roof: only fewer bytes help, by a narrower format or by leaving "
          "results in caches",
          more);
    }
    return str_cat("moves ", three_digits(p.gbps()), " of ", three_digits(gbps),
                   " GB/s: more bytes in flight, or less work a byte", more);
  }
  const double gflops = peaks.compute_gflops(p.unit);
  const std::string_view unit = peaks.compute_name(p.unit);
  if (at >= kAtRoof) {
    return str_cat("at the roof of ", unit, ": only a faster format helps");
  }
  return str_cat("reaches ", three_digits(p.gflops() * 1e-3), " of ", three_digits(gflops * 1e-3),
                 " TFLOP/s in ", unit, ": a better product loop; its ",
                 flop_per_byte(p.intensity()), " leave memory idle");
}

std::string write_analysis(std::span<const RooflinePoint> points,
                           const Peaks& peaks,
                           std::string_view title,
                           std::string_view picture) {
  std::string out = str_cat("# ", title, "\n\n");
  if (!picture.empty()) str_append(out, str_cat("![Roofline](", picture, ")\n\n"));
  append_ceilings(out, peaks);
  append_groups(out, points);
  append_losses(out, points, peaks);
  append_rows(out, points, peaks);
  out.pop_back();
  return out;
}

}  // namespace fathom
