// What a terminal shows besides the answer: a progress bar, colours, size and rate in words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::cli {

/// True if stderr is a terminal that may show a bar and colours.
bool stderr_is_terminal();
bool stdout_is_terminal();

/// "1.23 GB", "345 MB", "12 kB", "7 B": powers of ten.
std::string format_bytes(int64_t bytes);

/// Digits in groups: 671,026,419,200.
std::string format_count(int64_t value);

/// Fixed number of decimals.
std::string format_fixed(double value, int decimals);

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

/// A table of text cells as Markdown, columns aligned.
class MarkdownTable {
 public:
  explicit MarkdownTable(std::vector<std::string> header) : rows_{std::move(header)} {}

  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  /// Columns whose cells are all numbers are aligned to the right.
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace fathom::cli
