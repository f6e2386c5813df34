// What a terminal shows besides the answer: colours. Its line of progress is in progress.h; sizes,
// rates and tables as text are in text/figures.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fathom/text/figures.h"

namespace fathom::cli {

/// True if stderr is a terminal that may show a bar.
bool stderr_is_terminal();
bool stdout_is_terminal();

/// Columns of the terminal at a descriptor; 0 where there is none, or none that tells.
size_t terminal_columns(int descriptor);

/// Where escape codes may go, which --color, NO_COLOR and TERM decide.
enum class EscapeCodes { kOnTerminals, kNever, kAlways };

/// Said once, before anything is shown. Until then: kOnTerminals.
void set_escape_codes(EscapeCodes codes);

/// Whether text on standard output may be dimmed.
bool stdout_takes_colors();

/// Whether a person's terminal at standard input and output may be asked more than to show text:
/// that pastes be marked, that the cursor move.
bool terminal_takes_codes();

/// Writes text of a model, a prompt or a file to standard output: all its bytes, zeros too, and on
/// a terminal what terminal_text makes of them.
void write_text(std::string_view text);

/// Writes `text` over the line that was drawn on stderr before it; an empty text clears the line.
/// Needs no escape codes: what was longer is covered by blanks. `drawn` keeps the length, 0 at
/// first.
void draw_over_line(std::string_view text, size_t& drawn);

/// Takes away whatever line stands on stderr, from a handler of signals.
void cover_drawn_line();

}  // namespace fathom::cli
