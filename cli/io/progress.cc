#include "cli/io/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <unistd.h>

#include "cli/io/terminal.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/clock.h"
#include "fathom/text/figures.h"

namespace fathom::cli {
namespace {

constexpr int64_t kRedrawNs = 100'000'000;

// A longer line would wrap, and only its last row be taken away.
std::string cut_to_terminal(std::string line) {
  const size_t width = terminal_columns(STDERR_FILENO);
  const size_t columns = width > 1 ? width - 1 : 79;
  if (line.size() > columns) line.resize(columns);
  return line;
}

}  // namespace

std::string format_wait(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::min(seconds, 1e9)));
  if (whole < 60) return str_cat(whole, " s");
  const int64_t minutes = (whole + 59) / 60;
  if (minutes < 60) return str_cat(minutes, " min");
  return str_cat(minutes / 60, " h ", minutes % 60, " min");
}

std::string progress_line(std::string_view what,
                          std::string_view unit,
                          int64_t done,
                          int64_t total,
                          double seconds,
                          std::string_view at) {
  std::string line(what);
  if (total > 0) {
    constexpr int kWidth = 20;
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0., 1.);
    std::string bar(static_cast<size_t>(share * kWidth), '#');
    bar.resize(kWidth, '.');
    const std::string count = unit.empty()
                                  ? str_cat(format_bytes(done), " of ", format_bytes(total))
                                  : str_cat(done, " of ", total, " ", unit);
    str_append(line, str_cat(" [", bar, "] ", static_cast<int>(share * 100), " %, ", count));
    if (done > 0 && done < total && seconds >= 1) {
      str_append(line, str_cat(", ", format_wait(seconds * (1 - share) / share), " left"));
    }
  }
  return at.empty() ? line : str_cat(line, ": ", at);
}

Progress::Progress(std::string_view what, std::string_view unit, bool quiet)
    : what_(what),
      unit_(unit),
      enabled_(!quiet && stderr_is_terminal()),
      started_ns_(monotonic_ns()) {}

Progress::~Progress() {
  erase();
}

void Progress::update(int64_t done, int64_t total, std::string_view at) {
  if (!enabled_) return;
  const int64_t now = monotonic_ns();
  if (drawn_ > 0 && done < total && now - last_drawn_ns_ < kRedrawNs) return;
  last_drawn_ns_ = now;
  const double seconds = static_cast<double>(now - started_ns_) * 1e-9;
  const std::string line = cut_to_terminal(progress_line(what_, unit_, done, total, seconds, at));
  draw_over_line(line, drawn_);
}

void Progress::erase() {
  if (drawn_ > 0) draw_over_line({}, drawn_);
}

}  // namespace fathom::cli
