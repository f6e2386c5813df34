// Builds messages without iostreams. Safe to include from device code: no third-party header.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace fathom {

inline void str_append(std::string& out, std::string_view text) {
  out.append(text);
}

inline void str_append(std::string& out, char c) {
  out.push_back(c);
}

// A template, because text given as const char* would rather become a bool than a string_view.
template <std::same_as<bool> T>
void str_append(std::string& out, T value) {
  out.append(value ? "true" : "false");
}

template <std::integral T>

requires(!std::same_as<T, bool> && !std::same_as<T, char>) void str_append(std::string& out,
                                                                           T value) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(buffer, end);
}

/// Shortest text that reads back as the same value.
template <std::floating_point T>
void str_append(std::string& out, T value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(buffer, end);
}

/// Concatenates text, characters, integers, booleans and floating-point values.
template <class... Parts>
[[nodiscard]] std::string str_cat(const Parts&... parts) {
  std::string out;
  (str_append(out, parts), ...);
  return out;
}

}  // namespace fathom
