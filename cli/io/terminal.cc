#include "cli/io/terminal.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <unistd.h>

#include "fathom/base/str_cat.h"

namespace fathom::cli {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Columns a cell takes on the screen: code points, not bytes.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool looks_like_number(const std::string& text) {
  return !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-');
}

}  // namespace

bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) == 1;
}

bool stdout_is_terminal() {
  return isatty(STDOUT_FILENO) == 1;
}

std::string format_fixed(double value, int decimals) {
  std::array<char, 64> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, value);
  return {buffer.data(), static_cast<size_t>(std::max(length, 0))};
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return str_cat(format_fixed(value, decimals), " ", std::string_view(kUnits[unit]));
}

std::string format_count(int64_t value) {
  std::string digits = str_cat(value < 0 ? -value : value);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<size_t>(i), ",");
  }
  return value < 0 ? "-" + digits : digits;
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

std::string MarkdownTable::str() const {
  const size_t columns = rows_.front().size();
  std::vector<size_t> width(columns, 3);
  std::vector<bool> right(columns, rows_.size() > 1);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], width_of(rows_[r][c]));
      if (r > 0 && !looks_like_number(rows_[r][c])) right[c] = false;
    }
  }
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    out += '|';
    for (size_t c = 0; c < columns; ++c) {
      const std::string padding(width[c] - width_of(rows_[r][c]), ' ');
      str_append(out,
                 str_cat(" ", right[c] ? padding : "", rows_[r][c], right[c] ? "" : padding, " |"));
    }
    out += '\n';
    if (r > 0) continue;
    out += '|';
    for (size_t c = 0; c < columns; ++c) {
      out += std::string(width[c] + (right[c] ? 1 : 2), '-');
      out += right[c] ? ":|" : "|";
    }
    out += '\n';
  }
  return out;
}

}  // namespace fathom::cli
