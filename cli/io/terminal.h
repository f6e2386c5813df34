// What a terminal shows besides the answer: colours. Its line of progress is in progress.h; sizes,
// rates and tables as text are in text/figures.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fathom/text/figures.h"

namespace fathom::cli {

/// True if stderr is a terminal that may show a bar and colours.
bool stderr_is_terminal();
bool stdout_is_terminal();

/// Writes text of a model, a prompt or a file to standard output: all its bytes, zeros too, and on
/// a terminal what terminal_text makes of them.
void write_text(std::string_view text);

}  // namespace fathom::cli
