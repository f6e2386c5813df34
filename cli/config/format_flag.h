// The flag of a format that a command writes.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>

#include "fathom/formats/format_choice.h"

namespace fathom::cli {

/// Accepts what choose_format does.
inline CLI::Validator format_among(std::span<const FormatChoice> choices) {
  const auto check = [choices](const std::string& text) {
    const Result<Format> format = choose_format(text, choices);
    return format.ok() ? std::string{} : format.status().message();
  };
  return CLI::Validator(check, "");
}

}  // namespace fathom::cli
