#include "cli/io/terminal.h"

#include <cstdio>
#include <unistd.h>

#include "fathom/text/terminal_text.h"

namespace fathom::cli {
bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) == 1;
}

bool stdout_is_terminal() {
  return isatty(STDOUT_FILENO) == 1;
}

void write_text(std::string_view text) {
  const std::string shown = stdout_is_terminal() ? terminal_text(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

}  // namespace fathom::cli
