#include "cli/config/usage_error.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/about/command_doc.h"
#include "cli/config/elsewhere.h"
#include "fathom/base/near_names.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

std::string help_hint(const CLI::App& chosen, std::string_view what) {
  return str_cat("`", command_line_of(chosen), " --help` lists the ", what);
}

// The option that a text begins with, of the command or those above it.
const CLI::Option* option_named(const CLI::App& root, std::string_view text) {
  const CLI::Option* found = nullptr;
  size_t length = 0;
  for (const CLI::App* app = &innermost(root); app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      const std::string name = option->get_name();
      if (name.size() <= length || !text.starts_with(name)) continue;
      found = option;
      length = name.size();
    }
  }
  return found;
}

// `text` behind `mark`, or empty.
std::string_view after(std::string_view text, std::string_view mark) {
  const size_t at = text.find(mark);
  return at == text.npos ? std::string_view{} : text.substr(at + mark.size());
}

std::string kind_of(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return "true or false";
  const std::string type = option.get_type_name();
  if (type.starts_with("FLOAT")) return "a number";
  if (type.starts_with("INT") || type.starts_with("UINT")) return "an integer";
  return value_name(option);
}

// What was typed that nobody knows, with the nearest known name.
Refusal explain_unknown(const CLI::App& chosen, const std::string& word) {
  const bool is_flag = word.starts_with('-');
  Refusal refusal{str_cat("unknown argument '", word, "'"),
                  help_hint(chosen, is_flag ? "flags" : "arguments")};
  const CLI::Option* prompt = chosen.get_option_no_throw("--prompt");
  const bool is_text = !is_flag && prompt != nullptr && value_name(*prompt) == "TEXT";
  if (is_text && prompt->count() == 0) {
    refusal.hint = str_cat("a text is given with -p; ", refusal.hint);
  }
  if (!word.starts_with("--")) return refusal;
  std::vector<std::string> names;
  for (const CLI::App* app = &chosen; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_group().empty()) continue;
      for (const std::string& name : option->get_lnames())
        names.push_back("--" + name);
    }
  }
  const std::string typed = word.substr(0, word.find('='));
  const auto near = near_names(typed, names, 1);
  // --no-X is the opposite of --X, near as their names are.
  if (!near.empty() && typed.starts_with("--no-") == near.front().starts_with("--no-")) {
    refusal.hint = str_cat("did you mean ", near.front(), "? ", refusal.hint);
  }
  return refusal;
}

// A word that is no command where one is expected, or no word at all.
Refusal explain_missing_command(const CLI::App& chosen, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : chosen.get_subcommands([](const CLI::App*) { return true; }))
    if (!command->get_group().empty()) names.push_back(command->get_name());
  std::string known;
  for (const std::string& name : names)
    str_append(known, str_cat(known.empty() ? "" : ", ", name));
  const std::string in = command_line_of(chosen);
  if (word.empty()) {
    return {str_cat("`", in, "` needs a command: ", known), help_hint(chosen, "commands")};
  }
  Refusal refusal{str_cat("'", word, "' is no command of `", in, "`"), {}};
  const std::string_view elsewhere =
      chosen.get_parent() == nullptr ? find_elsewhere_command(word) : std::string_view{};
  const std::vector<std::string> near = near_names(word, names);
  if (!elsewhere.empty()) {
    refusal.hint = std::string(elsewhere);
  } else if (chosen.get_parent() == nullptr && path_kind(word) == PathKind::kDirectory) {
    refusal.hint = str_cat("`fathom run ", word, " -p TEXT`, or another command before the model");
  } else if (near.empty()) {
    str_append(refusal.message, str_cat(", expected ", known));
    refusal.hint = help_hint(chosen, "commands");
  } else {
    for (const std::string& name : near)
      str_append(refusal.hint, str_cat(refusal.hint.empty() ? "did you mean " : " or ", name));
    refusal.hint += "?";
  }
  return refusal;
}

Refusal explain_option(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& chosen = innermost(root);
  const std::string text = error.what();
  const std::string flags = help_hint(chosen, "flags");
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    const std::string_view rest = after(text, "Could not convert: ");
    const CLI::Option* option = option_named(root, rest.empty() ? std::string_view(text) : rest);
    if (option == nullptr || option->results().empty()) return {text, flags};
    return {str_cat(option->get_name(), " is '", option->results().back(), "', expected ",
                    kind_of(*option)),
            flags};
  }
  const CLI::Option* option = option_named(root, text);
  if (option == nullptr) return {text, flags};
  const std::string name = option->get_name();
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return {str_cat(name, " is missing: ", option->get_description()), flags};
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string value = value_name(*option);
    if (value.empty()) return {str_cat(name, " takes no value"), flags};
    return {str_cat(name, " needs a value: ", value), flags};
  }
  const CLI::Option* other = nullptr;
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) {
    other = option_named(root, after(text, " excludes "));
    if (other == nullptr) return {text, flags};
    return {str_cat(name, " and ", other->get_name(), " exclude each other"), "give one of them"};
  }
  if (dynamic_cast<const CLI::RequiresError*>(&error) != nullptr) {
    other = option_named(root, after(text, " requires "));
    if (other == nullptr) return {text, flags};
    return {str_cat(name, " needs ", other->get_name()), flags};
  }
  return {text, flags};
}

}  // namespace

const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

Refusal explain_usage(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& chosen = innermost(root);
  const std::vector<std::string> left = root.remaining(true);
  const std::string word = left.empty() ? std::string{} : left.front();
  const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool lacks_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
                             chosen.get_require_subcommand_min() > 0;
  if (lacks_command && !word.starts_with('-')) return explain_missing_command(chosen, word);
  if (lacks_command || is_extra) return explain_unknown(chosen, word);
  return explain_option(root, error);
}

}  // namespace fathom::cli
