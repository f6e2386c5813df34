#include "cli/io/terminal.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

#include "fathom/text/terminal_text.h"

namespace fathom::cli {
namespace {

EscapeCodes g_codes = EscapeCodes::kOnTerminals;

// Columns of the line that stands on stderr.
std::atomic<size_t> g_drawn{0};

constexpr auto kBlanks = [] {
  std::array<char, 64> blanks{};
  blanks.fill(' ');
  return blanks;
}();

}  // namespace

bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) == 1;
}

bool stdout_is_terminal() {
  return isatty(STDOUT_FILENO) == 1;
}

size_t terminal_columns(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
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
  // A signal may come before the line stands there or right after: from here on it is covered.
  g_drawn.store(std::max(drawn, text.size()));
  std::fprintf(stderr, "\r%.*s%s%s", static_cast<int>(text.size()), text.data(), cover.c_str(),
               text.empty() ? "\r" : "");
  std::fflush(stderr);
  drawn = text.size();
  g_drawn.store(drawn);
}

void cover_drawn_line() {
  const size_t columns = g_drawn.exchange(0);
  if (columns == 0) return;
  // Nobody is left to be told of an error.
  const auto put = [](size_t size, const char* bytes) {
    return ::write(STDERR_FILENO, bytes, size) >= 0;
  };
  bool went = put(1, "\r");
  for (size_t left = columns; went && left > 0; left -= std::min(left, kBlanks.size()))
    went = put(std::min(left, kBlanks.size()), kBlanks.data());
  if (went) put(1, "\r");
}

}  // namespace fathom::cli
