#include "fathom/formats/format_choice.h"

#include <algorithm>
#include <vector>

#include "fathom/base/ascii.h"
#include "fathom/base/near_names.h"

namespace fathom {

std::string format_names(std::span<const FormatChoice> choices) {
  std::string out;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string_view before = i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ";
    str_append(out, str_cat(before, choices[i].name));
  }
  return out;
}

Result<Format> choose_format(std::string_view name, std::span<const FormatChoice> choices) {
  const std::string lower = ascii_lower(name);
  std::vector<std::string> names;
  for (const FormatChoice& choice : choices) {
    if (choice.name == lower) return choice.format;
    names.emplace_back(choice.name);
  }
  const Result<Format> other = parse_format(name);
  const auto is_other = [&](const FormatChoice& choice) { return choice.format == *other; };
  if (other.ok() && std::any_of(choices.begin(), choices.end(), is_other)) return *other;
  return invalid_argument(str_cat("found '", name.substr(0, 64), "', expected ",
                                  format_names(choices),
                                  did_you_mean(near_names(name, std::move(names)))));
}

}  // namespace fathom
