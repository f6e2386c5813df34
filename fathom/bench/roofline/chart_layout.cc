// Where the parts of the picture lie. Labels are placed one after the other, the points that take
// most time first, at the nearest free place around their marker, with room to the next one; a
// label that finds no place within reach, or whose number stands there already, is left to the
// tooltip.
#include <algorithm>
#include <array>
#include <cmath>

#include "fathom/bench/roofline/chart.h"
#include "fathom/bench/suites/reference_names.h"
#include "fathom/text/figures.h"

namespace fathom {
namespace {

constexpr double kLeastWidth = 1200;
constexpr double kPlotTop = 74, kPlotRight = 800, kBelowPlot = 62, kLeastPlotHeight = 660;
constexpr double kLabelSize = 11;
constexpr double kLabelGap = 4;    // numbers that touch read as one
constexpr double kNamedNear = 24;  // from a marker to a label of the same number, which names both
constexpr double kRightMargin = 14;
constexpr double kLeast = 1e-3;  // GFLOP/s; a point below is drawn on the axis

/// Ends of an axis: a little beyond the values, and at least two powers of ten apart.
struct Range {
  double first, last;

  Range(double low, double high)
      : first(std::log10(low) - kMargin), last(std::log10(high) + kMargin) {
    const double missing = 2 - (last - first);
    if (missing <= 0) return;
    first -= missing / 2;
    last += missing / 2;
  }

 private:
  static constexpr double kMargin = 0.2;
};

struct Ceiling {
  std::string_view name;
  double gflops;
};

/// The units that the device has, the fastest first.
std::vector<Ceiling> ceilings_of(const Peaks& p) {
  std::vector<Ceiling> out;
  for (const Ceiling& c :
       {Ceiling{"fp4", p.fp4_gflops}, Ceiling{"fp8", p.fp8_gflops}, Ceiling{"int8", p.int8_gops},
        Ceiling{"bf16", p.bf16_gflops}, Ceiling{"f32", p.f32_gflops}}) {
    if (c.gflops > 0) out.push_back(c);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Ceiling& a, const Ceiling& b) { return a.gflops > b.gflops; });
  return out;
}

/// Where the height of a point comes from: its FLOPs a second, or, where it has none, the height at
/// the left end at which the roof of memory would show the same share.
double height_of(const RooflinePoint& p, double left_intensity) {
  const double gflops = p.flops > 0 ? p.gflops() : p.gbps() * left_intensity;
  return std::max(gflops, kLeast);
}

void choose_axes(const RooflineChart& chart, ChartLayout& layout) {
  const std::vector<Ceiling> ceilings = ceilings_of(chart.peaks);
  const double top = ceilings.empty() ? 1 : ceilings.front().gflops;
  double low_x = top / chart.peaks.read_gbps;
  double high_x = low_x * 2;
  for (const RooflinePoint& p : chart.points) {
    if (p.flops <= 0 || p.bytes <= 0) continue;
    low_x = std::min(low_x, p.intensity());
    high_x = std::max(high_x, p.intensity());
  }
  const Range x(low_x, high_x);
  layout.first_x = x.first;
  layout.last_x = x.last;
  const double left = std::pow(10.0, layout.first_x);
  double low_y = ceilings.empty() ? 1 : ceilings.back().gflops;
  double high_y = top;
  for (const RooflinePoint& p : chart.points) {
    low_y = std::min(low_y, height_of(p, left));
    high_y = std::max(high_y, height_of(p, left));
  }
  const Range y(low_y, high_y);
  layout.first_y = y.first;
  layout.last_y = y.last;
}

std::string rate_text(double gflops) {
  return gflops >= 1000 ? str_cat(format_fixed(gflops * 1e-3, 2), " TFLOP/s")
                        : str_cat(format_fixed(gflops, gflops < 10 ? 1 : 0), " GFLOP/s");
}

// Told apart without colour.
constexpr std::array<const char*, 5> kCeilingDashes = {"", "9 4", "3 3", "9 3 2 3", "1 3"};
constexpr std::array<const char*, 2> kMemoryDashes = {"", "6 4"};

void place_roofs(const RooflineChart& chart, ChartLayout& layout) {
  const std::vector<Ceiling> ceilings = ceilings_of(chart.peaks);
  const double right = std::pow(10.0, layout.last_x);
  const double left = std::pow(10.0, layout.first_x);
  const double bottom = std::pow(10.0, layout.first_y);
  const double read = chart.peaks.read_gbps;
  for (size_t i = 0; i < ceilings.size(); ++i) {
    const double y = layout.y_of(ceilings[i].gflops);
    layout.ceilings.push_back(
        {.from = {layout.x_of(std::max(left, ceilings[i].gflops / read)), y},
         .to = {layout.x_of(right), y},
         .dash = kCeilingDashes[i % kCeilingDashes.size()],
         .name = str_cat(ceilings[i].name, " ", rate_text(ceilings[i].gflops))});
  }
  const double top = ceilings.empty() ? std::pow(10.0, layout.last_y) : ceilings.front().gflops;
  const auto add_memory = [&](std::string_view name, double gbps) {
    const double start = std::max(left, bottom / gbps);
    const double end = std::min(right, top / gbps);
    layout.memory.push_back(
        {.from = {layout.x_of(start), layout.y_of(start * gbps)},
         .to = {layout.x_of(end), layout.y_of(end * gbps)},
         .dash = kMemoryDashes[layout.memory.size()],
         .name = str_cat(name, " ", format_fixed(gbps, gbps < 100 ? 1 : 0), " GB/s")});
  };
  add_memory("memory, reading", read);
  if (chart.peaks.copy_gbps < 0.97 * read || chart.peaks.copy_gbps > 1.03 * read) {
    add_memory("memory, copying", chart.peaks.copy_gbps);
  }
}

std::string tooltip_of(const RooflinePoint& p) {
  std::string out = str_cat(p.kernel, " ", p.op, "\n", p.label);
  if (!p.group.empty()) str_append(out, str_cat("\n", p.group));
  str_append(out, str_cat("\n", format_si(p.us * 1e-6), "s, ", format_fixed(p.share * 100, 1),
                          " % of the time\n"));
  if (p.flops > 0) {
    str_append(out, str_cat(format_si(p.gflops() * 1e9), "FLOP/s at ",
                            format_fixed(p.intensity(), 2), " FLOP/byte\n"));
  }
  str_append(out, str_cat(format_si(p.gbps() * 1e9), "B/s\n", format_fixed(p.percent(), 1),
                          " % of the roof, bound by ", p.bound));
  return out;
}

int index_of(std::vector<std::string>& names, const std::string& name) {
  const auto index = std::find(names.begin(), names.end(), name) - names.begin();
  if (index == static_cast<int64_t>(names.size())) names.push_back(name);
  return static_cast<int>(index);
}

/// What the legend explains. Returns the number of each point's key, from 0.
std::vector<int> choose_keys(const RooflineChart& chart, ChartLayout& layout) {
  std::vector<int> keys;
  layout.groups = groups_of(chart.points);
  for (const RooflinePoint& p : chart.points) {
    const std::string_view category = kernel_category(p.kernel);
    if (std::find(layout.categories.begin(), layout.categories.end(), category) ==
        layout.categories.end()) {
      layout.categories.push_back(category);
    }
    keys.push_back(index_of(layout.keys, str_cat(p.op, "  ", p.kernel)));
  }
  return keys;
}

void place_markers(const RooflineChart& chart, ChartLayout& layout) {
  const double left = std::pow(10.0, layout.first_x);
  const double bottom = std::pow(10.0, layout.first_y);
  std::vector<std::string> groups = layout.groups;
  for (const RooflinePoint& p : chart.points) {
    const std::string_view category = kernel_category(p.kernel);
    const double x = p.flops > 0 ? layout.x_of(std::max(p.intensity(), left))
                                 : layout.lane.x + layout.lane.width / 2;
    layout.markers.push_back({.at = {x, layout.y_of(std::max(height_of(p, left), bottom))},
                              .radius = 3.5 + 15 * std::sqrt(p.share),
                              .group = index_of(groups, p.group),
                              .category = category,
                              .tooltip = tooltip_of(p)});
  }
}

SvgBox box_of(const ChartLayout::Marker& m) {
  return {m.at.x - m.radius, m.at.y - m.radius, 2 * m.radius, 2 * m.radius};
}

class LabelPlacer {
 public:
  explicit LabelPlacer(ChartLayout& layout) : layout_(layout) {}

  /// Puts a text near a marker, if there is room and it does not stand there yet.
  void place(const ChartLayout::Marker& marker, const std::string& text) {
    if (is_named(marker, text)) return;
    const double width = svg_text_width(text, kLabelSize) + 2;
    const double height = kLabelSize;
    for (int ring = 0; ring < kRings; ++ring) {
      for (int turn = 0; turn < 16; ++turn) {
        const double angle = turn * 3.14159265358979 / 8;
        const double distance = marker.radius + 2 + ring * 9;
        const double x = marker.at.x + std::cos(angle) * (distance + width / 2) - width / 2;
        const double y = marker.at.y - std::sin(angle) * (distance + height / 2) - height / 2;
        const SvgBox box{x, y, width, height};
        if (!is_free(box)) continue;
        layout_.labels.push_back(
            {.box = box, .text = text, .marker = marker.at, .leader = ring > 0});
        return;
      }
    }
  }

 private:
  static constexpr int kRings = 14;

  bool is_named(const ChartLayout::Marker& marker, const std::string& text) const {
    return std::any_of(layout_.labels.begin(), layout_.labels.end(),
                       [&](const ChartLayout::Label& l) {
                         const double x = l.box.x + l.box.width / 2 - marker.at.x;
                         const double y = l.box.y + l.box.height / 2 - marker.at.y;
                         return l.text == text && std::hypot(x, y) < kNamedNear + marker.radius;
                       });
  }

  bool is_free(const SvgBox& box) const {
    if (!layout_.plot.contains(box) && !layout_.lane.contains(box)) return false;
    const SvgBox with_gap{box.x - kLabelGap, box.y - kLabelGap / 2, box.width + 2 * kLabelGap,
                          box.height + kLabelGap};
    return std::none_of(layout_.labels.begin(), layout_.labels.end(),
                        [&](const ChartLayout::Label& l) { return l.box.overlaps(with_gap); }) &&
           std::none_of(layout_.markers.begin(), layout_.markers.end(),
                        [&](const ChartLayout::Marker& m) { return box.overlaps(box_of(m)); });
  }

  ChartLayout& layout_;
};

/// Names of ceilings stand above their right ends; further left or below where they would meet
/// another name or hide a marker. Where no such place is left, markers give way.
void place_ceiling_names(ChartLayout& layout) {
  for (const ChartLayout::Line& line : layout.ceilings) {
    const double width = svg_text_width(line.name, kLabelSize) + 6;
    const double height = kLabelSize + 2;
    const double right = layout.plot.x + layout.plot.width - width;
    const auto place = [&](double top, bool avoid_markers) {
      for (double x = right; x > line.from.x; x -= 8) {
        const SvgBox box{x, top, width, height};
        const auto hits_label = [&](const ChartLayout::Label& l) { return l.box.overlaps(box); };
        const auto hits_marker = [&](const ChartLayout::Marker& m) {
          return avoid_markers && box_of(m).overlaps(box);
        };
        if (!layout.plot.contains(box) ||
            std::any_of(layout.labels.begin(), layout.labels.end(), hits_label) ||
            std::any_of(layout.markers.begin(), layout.markers.end(), hits_marker)) {
          continue;
        }
        layout.labels.push_back(
            {.box = box, .text = line.name, .marker = line.to, .leader = false});
        return true;
      }
      return false;
    };
    const double above = line.to.y - height - 2;
    const double below = line.to.y + 3;
    if (!place(above, true) && !place(below, true)) place(above, false);
  }
}

void place_labels(const RooflineChart& chart, ChartLayout& layout, const std::vector<int>& keys) {
  place_ceiling_names(layout);
  LabelPlacer placer(layout);
  std::vector<size_t> order(chart.points.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return chart.points[a].share > chart.points[b].share;
  });
  for (size_t i : order)
    placer.place(layout.markers[i], str_cat(keys[i] + 1));
}

/// As wide as the longest of its texts needs.
double width_of(const RooflineChart& chart, const ChartLayout& layout) {
  double right = kLeastWidth - kRightMargin;
  const auto fit = [&](double left, std::string_view text, double size) {
    right = std::max(right, left + svg_text_width(text, size));
  };
  fit(kTitleLeft, chart.title, kTitleSize);
  fit(kTitleLeft, chart.subtitle, kLabelSize);
  for (const std::string_view head : kLegendHeads)
    fit(kLegendLeft, head, kLabelSize + 1);
  for (const std::string& key : layout.keys)
    fit(kLegendText, key, kLabelSize);
  for (const std::string& group : layout.groups)
    fit(kLegendText, group, kLabelSize);
  for (const std::string_view category : layout.categories)
    fit(kLegendText, category, kLabelSize);
  for (const auto* lines : {&layout.ceilings, &layout.memory})
    for (const ChartLayout::Line& line : *lines)
      fit(kLegendText, line.name, kLabelSize);
  return right + kRightMargin;
}

}  // namespace

double ChartLayout::x_of(double intensity) const {
  return plot.x + (std::log10(intensity) - first_x) / (last_x - first_x) * plot.width;
}

double ChartLayout::y_of(double gflops) const {
  return plot.y + plot.height - (std::log10(gflops) - first_y) / (last_y - first_y) * plot.height;
}

ChartLayout layout_chart(const RooflineChart& chart) {
  ChartLayout layout;
  const std::vector<int> keys = choose_keys(chart, layout);
  // The legend on the right: lines, groups, shapes, and a line a key; the plot is as high.
  const size_t lines = ceilings_of(chart.peaks).size() + 2 + layout.groups.size() +
                       layout.categories.size() + layout.keys.size() + 8;
  layout.height = std::max(kPlotTop + kLeastPlotHeight + kBelowPlot,
                           kLegendTop + kLegendLine * static_cast<double>(lines));
  const double height = layout.height - kPlotTop - kBelowPlot;
  const bool lane = std::any_of(chart.points.begin(), chart.points.end(),
                                [](const RooflinePoint& p) { return p.flops <= 0; });
  double left = 72;
  if (lane) {
    layout.lane = {left, kPlotTop, 84, height};
    left += 92;
  }
  layout.plot = {left, kPlotTop, kPlotRight - left, height};
  choose_axes(chart, layout);
  place_roofs(chart, layout);
  place_markers(chart, layout);
  place_labels(chart, layout, keys);
  layout.width = width_of(chart, layout);
  return layout;
}

}  // namespace fathom
