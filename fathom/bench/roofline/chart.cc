#include "fathom/bench/roofline/chart.h"

#include <array>
#include <cmath>

namespace fathom {
namespace {

/// How the points of a group look. Fillings and outlines tell twelve groups apart, without colour
/// too.
struct GroupLook {
  std::string_view fill, stroke, dash;
};

constexpr std::array<GroupLook, 4> kFillings = {{{"#ffffff", "#0060a8", ""},
                                                 {"#f3c27a", "#8a4b00", ""},
                                                 {"#1d6b45", "#0d3b25", ""},
                                                 {"#d9d9d9", "#111111", ""}}};
constexpr std::array<std::string_view, 3> kOutlines = {"", "3 2", "1 1.5"};

GroupLook look_of(int group) {
  const auto g = static_cast<size_t>(group);
  GroupLook look = kFillings[g % kFillings.size()];
  look.dash = kOutlines[g / kFillings.size() % kOutlines.size()];
  return look;
}

constexpr double kPi = 3.14159265358979;

/// Corners on a circle, the first at `start` (0 is right, a quarter of a turn is up); every second
/// one is drawn in to `inner` of the radius where that is above 0.
std::vector<SvgPoint> corners(SvgPoint at, double radius, int count, double start, double inner) {
  std::vector<SvgPoint> out;
  const int steps = inner > 0 ? 2 * count : count;
  for (int i = 0; i < steps; ++i) {
    const double angle = (start + static_cast<double>(i) / steps) * 2 * kPi;
    const double r = inner > 0 && i % 2 == 1 ? radius * inner : radius;
    out.push_back({at.x + r * std::cos(angle), at.y - r * std::sin(angle)});
  }
  return out;
}

void draw_marker(SvgWriter& svg, std::string_view category, SvgPoint at, double r, int group) {
  const GroupLook look = look_of(group);
  const SvgStyle style{
      .fill = look.fill, .stroke = look.stroke, .stroke_width = 1.4, .dash = look.dash};
  const auto polygon = [&](int count, double start, double inner = 0, double scale = 1) {
    svg.polygon(corners(at, r * scale, count, start, inner), style);
  };
  if (category == "Norm") return svg.circle(at, r, style);
  if (category == "GEMM") return polygon(4, 0.125, 0, 1.2);      // a square
  if (category == "BMM") return polygon(4, 0.25, 0, 1.2);        // a diamond
  if (category == "Attention") return polygon(3, 0.25, 0, 1.3);  // a triangle on its base
  if (category == "RoPE") return polygon(3, 0.75, 0, 1.3);       // one on its tip
  if (category == "Concat") return polygon(4, 0.25, 0.35, 1.4);  // a star of four
  if (category == "Activation") return polygon(5, 0.25, 0, 1.1);
  if (category == "MoE Routing") return polygon(5, 0.25, 0.45, 1.4);
  polygon(6, 0, 0, 1.1);
}

std::string power_text(int power) {
  if (power < -3 || power > 6) return str_cat("1e", power);
  if (power < 0) return str_cat("0.", std::string(static_cast<size_t>(-power - 1), '0'), "1");
  if (power >= 3) return str_cat("1", std::string(static_cast<size_t>(power - 3), '0'), " k");
  return str_cat("1", std::string(static_cast<size_t>(power), '0'));
}

void draw_axes(SvgWriter& svg, const ChartLayout& l) {
  const SvgStyle grid{.stroke = "#e2e2e2"};
  const double bottom = l.plot.y + l.plot.height;
  const double right = l.plot.x + l.plot.width;
  for (int p = static_cast<int>(std::ceil(l.first_x)); p <= l.last_x; ++p) {
    const double x = l.x_of(std::pow(10.0, p));
    svg.line({x, l.plot.y}, {x, bottom}, grid);
    svg.text({x, bottom + 17}, power_text(p), {.anchor = TextAnchor::kMiddle});
  }
  const double axis = l.lane.width > 0 ? l.lane.x : l.plot.x;
  for (int p = static_cast<int>(std::ceil(l.first_y)); p <= l.last_y; ++p) {
    const double y = l.y_of(std::pow(10.0, p));
    svg.line({axis, y}, {right, y}, grid);
    svg.text({axis - 7, y + 4}, power_text(p), {.anchor = TextAnchor::kEnd});
  }
  svg.rect(l.plot, {.stroke = "#777"});
  svg.text({(l.plot.x + right) / 2, bottom + 40}, "FLOP per byte",
           {.size = 13, .anchor = TextAnchor::kMiddle});
  svg.text({14, l.plot.y - 12}, "GFLOP/s", {.size = 13});
  if (l.lane.width <= 0) return;
  svg.rect(l.lane, {.stroke = "#777"});
  const double middle = l.lane.x + l.lane.width / 2;
  svg.text({middle, bottom + 17}, "no FLOP", {.anchor = TextAnchor::kMiddle});
  svg.text({middle, bottom + 33}, "(bytes only)", {.size = 10, .anchor = TextAnchor::kMiddle});
}

void draw_roofs(SvgWriter& svg, const ChartLayout& l) {
  for (const ChartLayout::Line& line : l.ceilings)
    svg.line(line.from, line.to, {.stroke = "#333", .stroke_width = 1.6, .dash = line.dash});
  for (const ChartLayout::Line& line : l.memory)
    svg.line(line.from, line.to, {.stroke = "#333", .stroke_width = 2.2, .dash = line.dash});
}

void draw_points(SvgWriter& svg, const ChartLayout& l) {
  for (const ChartLayout::Label& label : l.labels) {
    if (!label.leader) continue;
    const SvgPoint middle{label.box.x + label.box.width / 2, label.box.y + label.box.height / 2};
    svg.line(label.marker, middle, {.stroke = "#999", .stroke_width = 0.8});
  }
  for (const ChartLayout::Marker& m : l.markers) {
    svg.begin_group(m.tooltip);
    draw_marker(svg, m.category, m.at, m.radius, m.group);
    svg.end_group();
  }
  for (const ChartLayout::Label& label : l.labels) {
    // White behind a label, so that lines do not run through it.
    svg.rect(label.box, {.fill = "#ffffff"});
    svg.text({label.box.x + 1, label.box.y + label.box.height - 2}, label.text, {.size = 11});
  }
}

/// Lines of text on the right side, from below the title down.
class Legend {
 public:
  explicit Legend(SvgWriter& svg) : svg_(svg) {}

  void head(std::string_view text) {
    y_ += 8;
    svg_.text({kLegendLeft, y_}, text, {.size = 12, .bold = true});
    y_ += kLegendLine;
  }

  /// Calls draw(place of the sample), then writes the text beside it.
  template <class Draw>
  void entry(std::string_view text, Draw draw) {
    draw(SvgPoint{kLegendLeft + 18, y_ - 4});
    svg_.text({kLegendText, y_}, text, {.size = 11});
    y_ += kLegendLine;
  }

 private:
  SvgWriter& svg_;
  double y_ = kLegendTop;
};

void draw_legend(SvgWriter& svg, const ChartLayout& l) {
  Legend legend(svg);
  legend.head(kLegendHeads[0]);
  const auto line = [&](const ChartLayout::Line& roof, double width) {
    legend.entry(roof.name, [&](SvgPoint at) {
      svg.line({at.x - 18, at.y}, {at.x + 18, at.y},
               {.stroke = "#333", .stroke_width = width, .dash = roof.dash});
    });
  };
  for (const ChartLayout::Line& roof : l.ceilings)
    line(roof, 1.6);
  for (const ChartLayout::Line& roof : l.memory)
    line(roof, 2.2);
  legend.head(kLegendHeads[1]);
  for (size_t i = 0; i < l.groups.size(); ++i) {
    legend.entry(l.groups[i],
                 [&](SvgPoint at) { draw_marker(svg, "Norm", at, 5.5, static_cast<int>(i)); });
  }
  legend.head(kLegendHeads[2]);
  for (std::string_view category : l.categories)
    legend.entry(category, [&](SvgPoint at) { draw_marker(svg, category, at, 5.5, 0); });
  legend.head(kLegendHeads[3]);
  for (size_t i = 0; i < l.keys.size(); ++i) {
    legend.entry(l.keys[i], [&](SvgPoint at) {
      svg.text({at.x + 16, at.y + 4}, str_cat(i + 1),
               {.size = 11, .anchor = TextAnchor::kEnd, .bold = true});
    });
  }
}

}  // namespace

RooflineChart make_chart(std::string title, const Peaks& peaks, std::vector<RooflinePoint> points) {
  const std::string subtitle = str_cat(
      peaks.device, ", ceilings ",
      peaks.source.rfind("measured", 0) == 0 ? peaks.source : std::string("of the data sheet"),
      "; ", points.size(), points.size() == 1 ? " kernel call" : " kernel calls");
  return {
      .title = std::move(title), .subtitle = subtitle, .peaks = peaks, .points = std::move(points)};
}

std::string draw_chart(const RooflineChart& chart) {
  const ChartLayout l = layout_chart(chart);
  SvgWriter svg(l.width, l.height, chart.title);
  svg.text({kTitleLeft, 26}, chart.title, {.size = kTitleSize, .bold = true});
  svg.text({kTitleLeft, 45}, chart.subtitle, {.size = 11, .fill = "#444"});
  draw_axes(svg, l);
  draw_roofs(svg, l);
  draw_points(svg, l);
  draw_legend(svg, l);
  return svg.take();
}

}  // namespace fathom
