#include "cli/not_empty.h"

#include "fathom/base/str_cat.h"

namespace fathom::cli {
namespace {

constexpr const char* kMark = "empty is a value";

bool takes_empty(CLI::Option& option) {
  try {
    return option.get_validator(kMark) != nullptr;
  } catch (const CLI::OptionNotFound&) {  // how the parser says that it has none of that name
    return false;
  }
}

}  // namespace

CLI::Validator not_empty(std::string_view expected) {
  const std::string message = str_cat("is empty, expected ", expected);
  return CLI::Validator(
      [message](const std::string& text) { return text.empty() ? message : std::string{}; }, "");
}

CLI::Validator empty_is_a_value() {
  return CLI::Validator([](const std::string&) { return std::string{}; }, "", kMark);
}

void refuse_empty_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const bool is_switch = option->get_expected_max() == 0;
    if (is_switch || takes_empty(*option)) continue;
    option->check(not_empty("a value (or is a variable not set?)"));
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    refuse_empty_values(*command);
}

std::vector<std::string> words_of_arguments(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int i = argc - 1; i > 0; --i) {
    const std::string_view word = argv[i];
    const bool lacks_value = word.starts_with("--") && word.find('=') + 1 == word.size();
    if (lacks_value) words.emplace_back();
    words.emplace_back(lacks_value ? word.substr(0, word.size() - 1) : word);
  }
  return words;
}

}  // namespace fathom::cli
