#include "cli/io/terminal.h"

#include <cstdio>
#include <unistd.h>

#include "fathom/text/terminal_text.h"

namespace fathom::cli {
namespace {

EscapeCodes g_codes = EscapeCodes::kOnTerminals;

}  // namespace

bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) == 1;
}

bool stdout_is_terminal() {
  return isatty(STDOUT_FILENO) == 1;
}

void set_escape_codes(EscapeCodes codes) {
  g_codes = codes;
}

bool stdout_takes_colors() {
  return g_codes == EscapeCodes::kAlways ||
         (g_codes == EscapeCodes::kOnTerminals && stdout_is_terminal());
}

bool terminal_takes_codes() {
  return g_codes != EscapeCodes::kNever && isatty(STDIN_FILENO) == 1 && stdout_is_terminal();
}

void write_text(std::string_view text) {
  const std::string shown = stdout_is_terminal() ? terminal_text(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

void draw_over_line(std::string_view text, size_t& drawn) {
  const size_t blanks = drawn > text.size() ? drawn - text.size() : 0;
  const std::string cover(blanks, ' ');
  std::fprintf(stderr, "\r%.*s%s%s", static_cast<int>(text.size()), text.data(), cover.c_str(),
               text.empty() ? "\r" : "");
  std::fflush(stderr);
  drawn = text.size();
}

}  // namespace fathom::cli
