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

}  // namespace fathom::cli
