#include "cli/config/engine_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "fathom/base/check.h"

namespace fathom::cli {
namespace {

// "--max-model-len,-c,--ctx-size"; a model is named without a flag too; a switch has its opposite.
std::string names_of(const OptionInfo& row) {
  std::string names = str_cat("--", row.flag);
  std::string alias;
  for (const char c : str_cat(row.aliases, " ")) {
    if (c != ' ') {
      alias += c;
      continue;
    }
    if (!alias.empty()) str_append(names, str_cat(alias.size() == 1 ? ",-" : ",--", alias));
    alias.clear();
  }
  if (row.flag == "model") str_append(names, str_cat(",", row.unit));
  if (row.value().empty()) str_append(names, str_cat(",!--no-", row.flag));
  return names;
}

void add_flag(CLI::App& app, EngineOptions& options, const OptionInfo& row) {
  const auto set = [&options, &row](const std::string& text) {
    FATHOM_CHECK(set_option(options, row.flag, text).ok(), "the parser has checked the value");
  };
  const auto check = [&row](const std::string& text) {
    EngineOptions any;
    const Status status = set_option(any, row.flag, text);
    if (status.ok()) return std::string{};
    const std::string message = status.message();  // the parser says its first word, the flag
    return message.substr(message.find(' ') + 1);
  };
  std::string help(row.help);
  help[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(help[0])));
  CLI::Option* flag = nullptr;
  if (row.value().empty()) {
    flag = app.add_flag_function(
        names_of(row), [set](int64_t count) { set(count > 0 ? "true" : "false"); }, help);
    flag->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  } else {
    const CLI::callback_t set_all = [set](const CLI::results_t& texts) {
      for (const std::string& text : texts)
        set(text);
      return true;
    };
    flag = app.add_option(names_of(row), set_all, help)->type_name(row.value());
    if (row.repeats) flag->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  flag->check(check)->group(std::string(group_heading(row.group)));
  flag->default_str(row.get(EngineOptions{}));
}

}  // namespace

void add_engine_flags(CLI::App& app,
                      EngineOptions& options,
                      OptionUse use,
                      std::initializer_list<OptionGroup> groups,
                      std::initializer_list<std::string_view> except) {
  for (const OptionInfo& row : option_table()) {
    const bool wanted = std::find(groups.begin(), groups.end(), row.group) != groups.end() &&
                        std::find(except.begin(), except.end(), row.flag) == except.end();
    if (wanted && (row.uses & use) != 0) add_flag(app, options, row);
  }
}

}  // namespace fathom::cli
