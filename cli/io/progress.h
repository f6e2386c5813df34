// How far a command is, for whoever waits at a terminal: one line on standard error with an
// estimate of what is left. Nothing where standard error is no terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::cli {

/// "12 s", "3 min", "2 h 5 min": rounded up, for estimates.
std::string format_wait(double seconds);

/// The line of a Progress, without what moves the cursor: "loading [###...]  40 %  2.1 GB of 5.2
/// GB, 9 s left". `unit` is empty for bytes; `at` says what is being done; nothing is estimated in
/// the first second.
std::string progress_line(std::string_view what,
                          std::string_view unit,
                          int64_t done,
                          int64_t total,
                          double seconds,
                          std::string_view at = {});

/// A line that is redrawn at most ten times a second and erased at the end, so that logs stay
/// clean.
class Progress {
 public:
  /// `what` is being done ("loading"); `unit` names what is counted ("tokens"), empty: bytes.
  Progress(std::string_view what, std::string_view unit, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of `total`, now at `at`; where `total` is 0 nobody knows how much there is. Calls may
  /// come from any one thread at a time.
  void update(int64_t done, int64_t total, std::string_view at = {});

  /// Takes the line away, before something else is printed.
  void erase();

 private:
  std::string what_;
  std::string unit_;
  size_t drawn_ = 0;  // columns of the line that stands there
  bool enabled_;
  int64_t started_ns_;
  int64_t last_drawn_ns_ = 0;
};

}  // namespace fathom::cli
