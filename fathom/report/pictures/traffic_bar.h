// Bars of pictures, cut into what the bytes are: weights, cache, activations.
#pragma once

#include "fathom/bench/roofline/svg.h"

namespace fathom {

/// Draws a bar of that box, cut in proportion, and returns where it ends. Parts too thin to see are
/// left out. The legend has defined the fills: it comes first.
double traffic_bar(
    SvgWriter& svg, const SvgBox& box, double weights, double cache, double activations);

/// Three squares with their names, from that corner to the right. Once a document.
void traffic_legend(SvgWriter& svg, SvgPoint corner);

}  // namespace fathom
