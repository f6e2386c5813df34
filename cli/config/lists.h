// Options that take several values.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/str_cat.h"

namespace fathom::cli {

/// "a,b" as a and b; empty parts stay.
inline std::vector<std::string> parts_of_list(std::string_view text) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

/// Accepts values with commas between them, each of which passes `each`. The parser's own delimiter
/// drops empty parts, so that "," would be a flag that was not given.
inline CLI::Validator list_of(const CLI::Validator& each = {}) {
  const auto check = [each](const std::string& text) -> std::string {
    if (text.empty()) return {};  // refused as an empty value
    for (const std::string& part : parts_of_list(text)) {
      if (part.empty()) return str_cat("found '", text, "', expected a value at each comma");
      if (std::string message = each(part); !message.empty()) return message;
    }
    return {};
  };
  return CLI::Validator(check, each.get_description());
}

/// Adds an option of several values, with commas or given more than once. Each passes `each`.
template <class T>
CLI::Option* add_list(CLI::App& app,
                      const std::string& names,
                      std::vector<T>& to,
                      const std::string& help,
                      const CLI::Validator& each = {}) {
  const CLI::callback_t set = [&to](const CLI::results_t& texts) {
    to.clear();
    for (const std::string& text : texts) {
      for (const std::string& part : parts_of_list(text)) {
        T value{};
        if (!CLI::detail::lexical_cast(part, value)) return false;
        to.push_back(std::move(value));
      }
    }
    return true;
  };
  return app.add_option(names, set, help)
      ->type_name(CLI::detail::type_name<T>())
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->check(list_of(each));
}

}  // namespace fathom::cli
