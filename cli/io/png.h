// Pictures for programs that do not read SVG.
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom::cli {

/// Draws an SVG document into a PNG file through librsvg's rsvg-convert. Errors: Unsupported where
/// it is not installed, Io where it fails.
Status write_png(std::string_view svg, const std::string& path);

}  // namespace fathom::cli
