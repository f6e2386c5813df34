// Where a command's text goes.
#pragma once

#include <string>

#include "fathom/base/status.h"

namespace fathom::cli {

/// Writes a whole text to a file, or to standard output if none is named. Errors: Io.
Status emit(const std::string& text, const std::string& file);

}  // namespace fathom::cli
