#include "fathom/report/pictures/traffic_bar.h"

#include <utility>

namespace fathom {
namespace {

// Dark, striped and light: they differ in print as well.
constexpr std::string_view kWeightFill = "#2f6fa8";
constexpr std::string_view kCacheFill = "url(#cache)";
constexpr std::string_view kActivationFill = "#dfe9f2";

SvgStyle filled(std::string_view fill) {
  return {.fill = fill, .stroke = "#1b3a57", .stroke_width = 0.5};
}

}  // namespace

double traffic_bar(
    SvgWriter& svg, const SvgBox& box, double weights, double cache, double activations) {
  const double bytes = weights + cache + activations;
  double x = box.x;
  for (const auto& [part, fill] : {std::pair{weights, kWeightFill}, std::pair{cache, kCacheFill},
                                   std::pair{activations, kActivationFill}}) {
    const double width = bytes > 0 ? box.width * part / bytes : 0;
    if (width < 0.05) continue;
    svg.rect({x, box.y, width, box.height}, filled(fill));
    x += width;
  }
  return x;
}

void traffic_legend(SvgWriter& svg, SvgPoint corner) {
  svg.define_stripes("cache", "#f2b25c", "#7a4b00");
  double x = corner.x;
  for (const auto& [name, fill] : {std::pair{std::string_view("weights"), kWeightFill},
                                   std::pair{std::string_view("cache"), kCacheFill},
                                   std::pair{std::string_view("activations"), kActivationFill}}) {
    svg.rect({x, corner.y, 18, 14}, filled(fill));
    svg.text({x + 24, corner.y + 12}, name, {.size = 13});
    x += 140;
  }
}

}  // namespace fathom
