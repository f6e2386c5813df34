#include "cli/io/terminal.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <unistd.h>

#include "fathom/base/str_cat.h"
#include "fathom/text/terminal_text.h"

namespace fathom::cli {
namespace {

EscapeCodes g_codes = EscapeCodes::kOnTerminals;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

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

ProgressBar::ProgressBar(std::string_view what, bool quiet)
    : what_(what), enabled_(!quiet && stderr_is_terminal()), started_ns_(now_ns()) {}

ProgressBar::~ProgressBar() {
  if (drawn_ > 0) draw_over_line({}, drawn_);
}

void ProgressBar::update(int64_t done, int64_t total) {
  if (!enabled_ || total <= 0) return;
  const int64_t now = now_ns();
  if (done < total && now - last_drawn_ns_ < 100'000'000) return;
  last_drawn_ns_ = now;
  constexpr int kWidth = 30;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const int filled = static_cast<int>(share * kWidth);
  const double seconds = static_cast<double>(now - started_ns_) / 1e9;
  std::string bar(static_cast<size_t>(filled), '#');
  bar.resize(kWidth, '.');
  const auto rate = static_cast<int64_t>(static_cast<double>(done) / std::max(seconds, 1e-3));
  draw_over_line(
      str_cat(what_, " [", bar, "] ", format_fixed(share * 100, 0), "%  ", format_bytes(done),
              " of ", format_bytes(total), ", ", format_bytes(rate), "/s"),
      drawn_);
}

}  // namespace fathom::cli
