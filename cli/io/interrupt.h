// What Ctrl-C does. Every command ends with exit code 130 and says what is left of its work; those
// that can stop at a good place ask for the signal themselves.
#pragma once

#include <string_view>

namespace fathom::cli {

/// From here on Ctrl-C ends the process at once with exit code 130 and "fathom: interrupted: " and
/// `left` on standard error. Where the caller has the signal ignored, it stays so.
void end_at_interrupt(std::string_view left);

/// From here on the first Ctrl-C is noted for take_interrupt(), and a second one before that ends
/// the process.
void install_interrupt_handler();

/// Whether there was one; reading clears it.
bool take_interrupt();

}  // namespace fathom::cli
