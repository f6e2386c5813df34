// What a file is that stands in the place of another: what downloads leave that went wrong, and
// formats of other programs.
#pragma once

#include <string_view>

#include "fathom/base/status.h"
#include "fathom/text/json.h"

namespace fathom {

/// For messages about a file that cannot be read: what its first bytes (512 are enough) show that
/// it is, and how to get the right one, such as "is compressed; unpack it". Empty where they show
/// nothing.
std::string_view foreign_file(std::string_view first_bytes);

/// parse_json of the text of a file. Errors: those of parse_json; Corrupt with foreign_file for a
/// file of another kind.
Result<Json> parse_json_file(std::string_view text,
                             const JsonLimits& limits,
                             std::string_view path);

}  // namespace fathom
