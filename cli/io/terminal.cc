#include "cli/io/terminal.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <unistd.h>

#include "fathom/base/str_cat.h"
#include "fathom/text/terminal_text.h"

namespace fathom::cli {
namespace {

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

void write_text(std::string_view text) {
  const std::string shown = stdout_is_terminal() ? terminal_text(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

ProgressBar::ProgressBar(std::string_view what, bool quiet)
    : what_(what), enabled_(!quiet && stderr_is_terminal()), started_ns_(now_ns()) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
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
  std::fprintf(
      stderr, "\r%s [%s] %3.0f%%  %s of %s, %s/s\033[K", what_.c_str(), bar.c_str(), share * 100,
      format_bytes(done).c_str(), format_bytes(total).c_str(),
      format_bytes(static_cast<int64_t>(static_cast<double>(done) / std::max(seconds, 1e-3)))
          .c_str());
  std::fflush(stderr);
  shown_ = true;
}

}  // namespace fathom::cli
