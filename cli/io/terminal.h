// What a terminal shows besides the answer: a progress bar, colours. Sizes, rates and tables as
// text are in text/figures.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fathom/text/figures.h"

namespace fathom::cli {

/// True if stderr is a terminal that may show a bar and colours.
bool stderr_is_terminal();
bool stdout_is_terminal();

/// Writes text of a model, a prompt or a file to standard output: all its bytes, zeros too, and on
/// a terminal what terminal_text makes of them.
void write_text(std::string_view text);

/// A bar on stderr, redrawn at most ten times a second; silent when stderr is no terminal or when
/// told to be quiet. The line is erased at the end, so logs stay clean.
class ProgressBar {
 public:
  ProgressBar(std::string_view what, bool quiet);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Bytes done of all bytes. Calls may come from any one thread at a time.
  void update(int64_t done, int64_t total);

 private:
  std::string what_;
  bool shown_ = false;
  bool enabled_;
  int64_t started_ns_;
  int64_t last_drawn_ns_ = 0;
};

}  // namespace fathom::cli
