#include "fathom/report/docs/share_doc.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/str_cat.h"
#include "fathom/report/pictures/traffic_bar.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

// Ops below this share are added up in one line.
constexpr double kSmall = 0.001;

struct Bar {
  std::string name;
  double share = 0;
  double us = 0;
  double weights = 0;
  double cache = 0;
  double activations = 0;

  double bytes() const { return weights + cache + activations; }
};

std::vector<Bar> bars_of(const std::vector<SummaryRow>& rows, const std::string& phase) {
  std::vector<Bar> out;
  Bar rest;
  rest.name = "all others";
  for (const SummaryRow& r : rows) {
    if (r.kind != SummaryKind::kOp || r.phase != phase) continue;
    const double share = r.share_of_time.value_or(r.share_of_bytes);
    Bar& bar = share < kSmall ? rest : out.emplace_back();
    if (share >= kSmall) bar.name = str_cat(r.name, " (", r.kernel, ")");
    bar.share += share;
    bar.us += r.total_us.value_or(0);
    bar.weights += r.weight_bytes;
    bar.cache += r.cache_bytes;
    bar.activations += r.activation_bytes;
  }
  if (rest.share > 0) out.push_back(std::move(rest));
  return out;
}

const TracePhase* phase_of(const Recording& r, const std::string& name) {
  for (const TracePhase& phase : r.phases)
    if (phase.name == name) return &phase;
  return nullptr;
}

std::string bar_text(double share) {
  constexpr double kCells = 60;
  const auto eighths = static_cast<int64_t>(std::lround(share * kCells * 8));
  constexpr std::string_view kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string out;
  for (int64_t i = 0; i < eighths / 8; ++i)
    out += "█";
  out += kParts[eighths % 8];
  return out;
}

std::string bytes_text(double bytes) {
  return format_bytes(static_cast<int64_t>(bytes));
}

// ---- The picture

constexpr double kWidth = 1200;
constexpr double kLeft = 410;
constexpr double kBarWidth = 540;
constexpr double kRow = 26;
constexpr double kTop = 92;

}  // namespace

std::string share_bars(const std::vector<SummaryRow>& rows, const std::string& phase) {
  const std::vector<Bar> bars = bars_of(rows, phase);
  size_t width = 0;
  for (const Bar& bar : bars)
    width = std::max(width, bar.name.size());
  std::string out;
  for (const Bar& bar : bars) {
    const std::string percent = format_fixed(100 * bar.share, 1);
    const std::string figure =
        bar.us > 0 ? str_cat(format_fixed(bar.us * 1e-3, 3), " ms") : bytes_text(bar.bytes());
    str_append(out, str_cat(bar.name, std::string(width - bar.name.size() + 2, ' '),
                            std::string(5 - std::min<size_t>(5, percent.size()), ' '), percent,
                            " %  ", std::string(10 - std::min<size_t>(10, figure.size()), ' '),
                            figure, "  ", bar_text(bar.share), "\n"));
  }
  return out;
}

std::string write_share_doc(const Recording& r, const std::vector<SummaryRow>& rows) {
  std::string out = str_cat(
      "# Where the ", r.timed ? "time" : "bytes", " of ", r.title, " go\n\nPrinted by `", r.command,
      "`. A bar is an op over all layers and steps of the phase, as a share of all its ",
      r.timed ? "time in kernels" : "compulsory bytes", ".\n");
  for (const TracePhase& phase : r.phases) {
    str_append(
        out, str_cat("\n## ", phase.title, "\n\n```text\n", share_bars(rows, phase.name), "```\n"));
  }
  return out;
}

std::string write_share_svg(const Recording& r,
                            const std::vector<SummaryRow>& rows,
                            const std::string& phase_name) {
  const TracePhase* phase = phase_of(r, phase_name);
  if (phase == nullptr) return {};
  const std::vector<Bar> bars = bars_of(rows, phase_name);
  double most = 0;
  for (const Bar& bar : bars)
    most = std::max(most, bar.share);
  const double height = kTop + static_cast<double>(bars.size()) * kRow + 24;
  const std::string title =
      str_cat("Where the ", r.timed ? "time goes" : "bytes go", ". ", phase->title);
  SvgWriter svg(kWidth, height, title);
  svg.text({24, 30}, title, {.size = 18, .bold = true});
  traffic_legend(svg, {kLeft, 56});
  double y = kTop;
  for (const Bar& bar : bars) {
    svg.text({kLeft - 12, y + 17}, bar.name, {.size = 13, .anchor = TextAnchor::kEnd});
    const double full = most > 0 ? bar.share / most * kBarWidth : 0;
    const double x =
        traffic_bar(svg, {kLeft, y + 3, full, kRow - 8}, bar.weights, bar.cache, bar.activations);
    svg.text({x + 8, y + 17},
             str_cat(format_fixed(100 * bar.share, 1), " %, ", bytes_text(bar.bytes()),
                     bar.us > 0 ? str_cat(", ", format_fixed(bar.us * 1e-3, 3), " ms") : ""),
             {.size = 13});
    y += kRow;
  }
  return svg.take();
}

}  // namespace fathom
