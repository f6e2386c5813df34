#include "fathom/report/docs/share_doc.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/str_cat.h"
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

constexpr int kWidth = 1200;
constexpr int kLeft = 410;
constexpr int kBarWidth = 560;
constexpr int kRow = 26;
constexpr int kTop = 92;

std::string text_at(double x, double y, std::string_view text, std::string_view style) {
  std::string escaped;
  for (char c : text) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else {
      escaped += c;
    }
  }
  return str_cat("<text x=\"", format_fixed(x, 1), "\" y=\"", format_fixed(y, 1), "\" ", style, ">",
                 escaped, "</text>\n");
}

std::string rect(double x, double y, double width, double height, std::string_view fill) {
  return str_cat("<rect x=\"", format_fixed(x, 2), "\" y=\"", format_fixed(y, 2), "\" width=\"",
                 format_fixed(width, 2), "\" height=\"", format_fixed(height, 2), "\" fill=\"",
                 fill, "\" stroke=\"#1b3a57\" stroke-width=\"0.5\"/>\n");
}

constexpr std::string_view kWeightFill = "#2f6fa8";
constexpr std::string_view kCacheFill = "url(#cache)";
constexpr std::string_view kActivationFill = "#dfe9f2";

constexpr std::string_view kDefs =
    "<defs><pattern id=\"cache\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#f2b25c\"/>"
    "<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"#7a4b00\" stroke-width=\"2\"/></pattern>"
    "</defs>\n";

std::string legend() {
  std::string out;
  double x = kLeft;
  for (const auto& [name, fill] : {std::pair{std::string_view("weights"), kWeightFill},
                                   std::pair{std::string_view("cache"), kCacheFill},
                                   std::pair{std::string_view("activations"), kActivationFill}}) {
    out += rect(x, 56, 18, 14, fill);
    out += text_at(x + 24, 68, name, "font-size=\"14\"");
    x += 140;
  }
  return out;
}

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
  const int height = kTop + static_cast<int>(bars.size()) * kRow + 24;
  std::string out =
      str_cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", height,
              "\" width=\"", kWidth, "\" height=\"", height,
              "\" font-family=\"sans-serif\" fill=\"#16212b\">\n", kDefs, "<rect width=\"", kWidth,
              "\" height=\"", height, "\" fill=\"#ffffff\"/>\n");
  out +=
      text_at(24, 30, str_cat("Where the ", r.timed ? "time goes" : "bytes go", ". ", phase->title),
              "font-size=\"20\" font-weight=\"bold\"");
  out += legend();
  double y = kTop;
  for (const Bar& bar : bars) {
    out += text_at(kLeft - 12, y + 17, bar.name, "font-size=\"14\" text-anchor=\"end\"");
    const double full = most > 0 ? bar.share / most * kBarWidth : 0;
    const double bytes = bar.bytes();
    double x = kLeft;
    for (const auto& [part, fill] :
         {std::pair{bar.weights, kWeightFill}, std::pair{bar.cache, kCacheFill},
          std::pair{bar.activations, kActivationFill}}) {
      const double width = bytes > 0 ? full * part / bytes : 0;
      if (width < 0.05) continue;
      out += rect(x, y + 3, width, kRow - 8, fill);
      x += width;
    }
    out += text_at(x + 8, y + 17,
                   str_cat(format_fixed(100 * bar.share, 1), " %, ", bytes_text(bytes),
                           bar.us > 0 ? str_cat(", ", format_fixed(bar.us * 1e-3, 3), " ms") : ""),
                   "font-size=\"14\"");
    y += kRow;
  }
  return out + "</svg>\n";
}

}  // namespace fathom
