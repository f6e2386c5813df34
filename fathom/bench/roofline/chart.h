// The roofline as a picture: FLOPs a second over FLOPs a byte, both logarithmic, under the ceilings
// of the machine. Shapes tell what a kernel is for, fillings which group a point belongs to, sizes
// its share of the time, numbers which op it is; colour repeats what the filling says.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/roofline/points.h"
#include "fathom/bench/roofline/svg.h"

namespace fathom {

struct RooflineChart {
  std::string title{};
  std::string subtitle{};
  Peaks peaks{};
  std::vector<RooflinePoint> points{};  ///< at least one
};

/// With a subtitle that names the ceilings and the number of calls.
RooflineChart make_chart(std::string title, const Peaks& peaks, std::vector<RooflinePoint> points);

inline constexpr double kLegendLine = 15;  ///< pixels from one line of the legend to the next
inline constexpr double kLegendLeft = 826;
inline constexpr double kLegendText = kLegendLeft + 44;  ///< behind the samples
inline constexpr double kLegendTop = 54;                 ///< below the title, which may be long
inline constexpr double kTitleLeft = 14;
inline constexpr double kTitleSize = 17;

/// The heads of the legend, above their entries.
inline constexpr std::string_view kLegendHeads[] = {
    "Ceilings", "Fillings: groups; sizes: share of its time", "Shapes", "Numbers"};

/// Where everything lies, in pixels.
struct ChartLayout {
  struct Marker {
    SvgPoint at;
    double radius = 0;
    int group = 0;
    std::string_view category{};
    std::string tooltip{};
  };

  struct Label {
    SvgBox box;
    std::string text{};
    SvgPoint marker{};    ///< what it belongs to
    bool leader = false;  ///< a line leads there
  };

  struct Line {
    SvgPoint from, to;
    std::string dash{};
    std::string name{};  ///< "bf16 1.4 TFLOP/s"
  };

  double width = 0, height = 0;
  SvgBox plot{};
  SvgBox lane{};  ///< of points without FLOPs, left of the plot; empty if there are none
  std::vector<Marker> markers{};
  std::vector<Label> labels{};      ///< none touches another, or a marker
  std::vector<Line> ceilings{};     ///< one a number format
  std::vector<Line> memory{};       ///< reading, and copying where that is slower
  std::vector<std::string> keys{};  ///< what the numbers stand for, from 1
  std::vector<std::string> groups{};
  std::vector<std::string_view> categories{};
  double first_x = 0, last_x = 0, first_y = 0, last_y = 0;  ///< logarithms at the ends of the axes

  double x_of(double intensity) const;
  double y_of(double gflops) const;
};

ChartLayout layout_chart(const RooflineChart& chart);

/// The picture, an SVG document.
std::string draw_chart(const RooflineChart& chart);

}  // namespace fathom
