#include "fathom/text/figures.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

// Columns a cell takes on the screen: code points, not bytes.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool looks_like_number(const std::string& text) {
  return !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-');
}

std::string cell_text(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::string format_fixed(double value, int decimals) {
  std::array<char, 400> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::fixed, decimals);
  return {buffer.data(), static_cast<size_t>(end.ptr - buffer.data())};
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

std::string format_memory(int64_t bytes) {
  constexpr std::string_view kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return str_cat(bytes, " bytes");
  size_t unit = 0;
  int64_t scale = 1;
  while (unit + 1 < std::size(kUnits) && bytes / scale >= 1024) {
    scale *= 1024;
    ++unit;
  }
  // Two decimals, rounded half up, in integers: bytes / scale < 1024 (or the largest unit).
  const int64_t whole = bytes / scale;
  int64_t cents = (bytes % scale * 100 + scale / 2) / scale;
  const int64_t carry = cents / 100;
  cents %= 100;
  return str_cat(whole + carry, ".", cents / 10, cents % 10, " ", kUnits[unit]);
}

std::string format_si(double value) {
  constexpr std::array<const char*, 6> kPrefixes = {"", " k", " M", " G", " T", " P"};
  if (value == 0) return "0";
  size_t prefix = 0;
  while (std::fabs(value) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  const double size = std::fabs(value);
  const int decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return str_cat(format_fixed(value, decimals), std::string_view(kPrefixes[prefix]));
}

std::string format_count(int64_t value) {
  std::string digits = str_cat(value < 0 ? -value : value);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) {
    digits.insert(static_cast<size_t>(i), 1, ',');
  }
  return value < 0 ? "-" + digits : digits;
}

std::string MarkdownTable::str() const {
  const size_t columns = rows_.front().size();
  std::vector<std::vector<std::string>> cells;
  std::vector<size_t> width(columns, 3);
  std::vector<bool> right(columns, rows_.size() > 1);
  for (size_t r = 0; r < rows_.size(); ++r) {
    auto& line = cells.emplace_back();
    for (size_t c = 0; c < columns; ++c) {
      line.push_back(cell_text(rows_[r][c]));
      width[c] = std::max(width[c], width_of(line[c]));
      if (r > 0 && !looks_like_number(line[c])) right[c] = false;
    }
  }
  // A column of prose would be mostly blanks.
  for (size_t& w : width)
    if (w > kWidestAligned) w = 3;
  std::string out;
  for (size_t r = 0; r < cells.size(); ++r) {
    out += '|';
    for (size_t c = 0; c < columns; ++c) {
      const size_t filled = width_of(cells[r][c]);
      const std::string padding(filled < width[c] ? width[c] - filled : 0, ' ');
      str_append(out,
                 str_cat(" ", right[c] ? padding : "", cells[r][c], right[c] ? "" : padding, " |"));
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

}  // namespace fathom
