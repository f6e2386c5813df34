// Formats under the names that a command has for them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"

namespace fathom {

/// `fathom quantize` writes "int8" where there is int8_channel alone.
struct FormatChoice {
  std::string_view name;
  Format format;
};

/// "nvfp4, int8 or bf16".
std::string format_names(std::span<const FormatChoice> choices);

/// The choice of that name, or of another spelling of its format (parse_format). Errors:
/// InvalidArgument with the names of the choices and none of the others, and with near ones.
Result<Format> choose_format(std::string_view name, std::span<const FormatChoice> choices);

}  // namespace fathom
