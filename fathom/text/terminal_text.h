// Text from outside as a terminal may show it.
#pragma once

#include <string>
#include <string_view>

namespace fathom {

/// The text with "\x1b" for an escape character, so that what a model or a file says cannot steer
/// the terminal: control characters (C0 but for newline and tab, DEL, C1) and bytes that are no
/// UTF-8 are written so, byte by byte. Pieces of a stream that are cut between characters add up to
/// the whole.
std::string terminal_text(std::string_view text);

}  // namespace fathom
