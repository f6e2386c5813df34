// Letters, digits and blanks of ASCII, whatever the locale; bytes beyond it are left alone.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace fathom {

constexpr char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

inline std::string ascii_lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) { return ascii_lower(c); });
  return out;
}

/// Whether two texts differ in the case of letters alone.
inline bool equal_without_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return ascii_lower(c); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

/// The value of a hexadecimal digit; -1 for another character.
constexpr int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = ascii_lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

inline constexpr std::string_view kAsciiBlanks = " \t\r\n";

/// The text without the blanks around it.
inline std::string_view trimmed(std::string_view text, std::string_view blanks = kAsciiBlanks) {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

}  // namespace fathom
