// A text changed by a person in an editor of their choice.
#pragma once

#include <string>

#include "fathom/base/status.h"

namespace fathom::cli {

/// The text after $VISUAL, else $EDITOR, else vi had it in a file of its own, without the newline
/// that editors put at the end. Errors: Io; Unavailable for an editor that does not end well.
Result<std::string> edit_text(const std::string& text);

}  // namespace fathom::cli
