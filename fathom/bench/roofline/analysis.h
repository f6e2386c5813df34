// What a roofline says, in words computed from the points: what bounds what, how far from the roof
// it is, and what would move it.
#pragma once

#include <span>
#include <string>

#include "fathom/bench/machine/peaks.h"
#include "fathom/bench/roofline/points.h"

namespace fathom {

/// What would make a call faster, "reads 12.1 of 31.0 GB/s: more bytes in flight".
std::string remedy_for(const RooflinePoint& point, const Peaks& peaks);

/// A Markdown page: ceilings, bounds by group, the rows that lose most time, and a line a kernel.
/// `title` heads it. `picture` is the file it links to; empty: none.
std::string write_analysis(std::span<const RooflinePoint> points,
                           const Peaks& peaks,
                           std::string_view title,
                           std::string_view picture);

}  // namespace fathom
