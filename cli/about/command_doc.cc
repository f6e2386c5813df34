#include "cli/about/command_doc.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/about/value_names.h"
#include "fathom/api/options.h"

namespace fathom::cli {
namespace {

bool is_switch(const CLI::Option& option) {
  return option.get_expected_max() == 0;
}

bool has(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// The parser's name of a type and, behind a colon, what its checks say: "TEXT:svg|csv",
// "INT:INT in [1 - 8]". Flags of the engine have the name of their value in the first place.
struct TypeText {
  std::string_view type;
  std::string_view check;
};

TypeText split_type(std::string_view text) {
  for (const std::string_view type : {"", "TEXT", "INT", "UINT", "FLOAT", "BOOLEAN"}) {
    if (text == type) return {type, {}};
    if (text.starts_with(type) && text[type.size()] == ':') {
      return {type, text.substr(type.size() + 1)};
    }
  }
  return {text, {}};
}

bool is_range(std::string_view check) {
  return check.find(" in [") != check.npos;
}

// "INT in [1 - 4096]" as "1 to 4096".
std::string range_of(std::string_view check) {
  const size_t begin = check.find(" in [");
  const size_t middle = check.find(" - ", begin);
  const size_t end = check.find(']', middle);
  if (begin == check.npos || middle == check.npos || end == check.npos) return {};
  return str_cat(check.substr(begin + 5, middle - begin - 5), " to ",
                 check.substr(middle + 3, end - middle - 3));
}

// A switch that takes a word behind `=`, and has one of its own without it.
bool takes_word(const CLI::Option& option) {
  const auto& names = option.get_fnames();
  return is_switch(option) && !option.get_lnames().empty() &&
         has(names, option.get_lnames().front());
}

// A default that is no value stands in the description: "... (default: the model's)".
struct HelpText {
  std::string help;
  std::string usual;
};

HelpText split_help(const std::string& description) {
  constexpr std::string_view kMark = " (default: ";
  const size_t at = description.rfind(kMark);
  if (at == description.npos || !description.ends_with(')')) return {description, {}};
  const size_t begin = at + kMark.size();
  return {description.substr(0, at), description.substr(begin, description.size() - begin - 1)};
}

std::string usual_of(const CLI::Option& option, const std::string& told) {
  const std::string value = option.get_default_str();
  if (is_switch(option)) return takes_word(option) ? "none" : value == "true" ? "on" : "off";
  if (!value.empty()) return value;
  if (!told.empty()) return told;
  return option.get_required() ? "required" : "none";
}

FlagDoc describe_flag(const CLI::App& app, const CLI::Option& option) {
  FlagDoc doc;
  const std::vector<std::string>& longs = option.get_lnames();
  doc.letters = option.get_snames();
  doc.positional = option.get_positional() ? option.get_name(true) : std::string{};
  doc.name = longs.empty() ? doc.positional : longs.front();
  for (const std::string& name : longs) {
    if (name == "no-" + doc.name) {
      doc.negatable = true;
    } else if (name != doc.name) {
      doc.aliases.push_back(name);
    }
  }
  doc.value = value_name(option);
  doc.words = words_of_value(doc.value);
  const std::string type_name = option.get_type_name();
  const TypeText type = split_type(type_name);
  if (is_range(type.check)) doc.range = range_of(type.check);
  const HelpText text = split_help(option.get_description());
  doc.help = text.help;
  doc.usual = usual_of(option, text.usual);
  if (option.get_configurable() && !longs.empty()) doc.environment = environment_name(doc.name);
  doc.group = option.get_group();
  doc.repeats = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll ||
                option.get_expected_max() > 1;
  doc.required = option.get_required();
  doc.is_help = &option == app.get_help_ptr() || &option == app.get_help_all_ptr() ||
                &option == app.get_version_ptr();
  return doc;
}

std::string words_of(const CLI::App& app) {
  const std::string line = command_line_of(app);
  const size_t blank = line.find(' ');
  return blank == line.npos ? std::string{} : line.substr(blank + 1);
}

}  // namespace

std::string CommandDoc::line() const {
  return words.empty() ? "fathom" : str_cat("fathom ", words);
}

CommandDoc describe(const CLI::App& app) {
  CommandDoc doc{
      .words = words_of(app), .help = app.get_description(), .flags = {}, .commands = {}};
  const bool is_root = app.get_parent() == nullptr;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    FlagDoc flag = describe_flag(app, *option);
    // Every command has a -h of its own, which is told once.
    if (is_root || !flag.is_help) doc.flags.push_back(std::move(flag));
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) doc.commands.push_back(describe(*command));
  }
  return doc;
}

std::string typed_name(const FlagDoc& flag) {
  if (!flag.positional.empty() && flag.name == flag.positional) return flag.name;
  return str_cat(flag.negatable ? "--[no-]" : "--", flag.name);
}

std::string names_with_value(const FlagDoc& flag, Names names) {
  std::string out;
  const auto add = [&](std::string_view dashes, std::string_view name) {
    str_append(out, str_cat(out.empty() ? "" : ", ", dashes, name));
  };
  if (!flag.positional.empty()) add("", flag.positional);
  for (const std::string& letter : flag.letters)
    add("-", letter);
  if (flag.name != flag.positional) add("", typed_name(flag));
  if (names == Names::kAll) {
    for (const std::string& alias : flag.aliases)
      add("--", alias);
  }
  const bool only_positional = flag.name == flag.positional;
  if (flag.value.empty() || only_positional || flag.value == flag.positional) return out;
  return str_cat(out, flag.value.front() == '[' ? "" : " ", flag.value);
}

const CommandDoc* find_command(const CommandDoc& root, const std::vector<std::string>& words) {
  const CommandDoc* at = &root;
  for (const std::string& word : words) {
    const std::string line = at->words.empty() ? word : str_cat(at->words, " ", word);
    const auto found = std::find_if(at->commands.begin(), at->commands.end(),
                                    [&](const CommandDoc& c) { return c.words == line; });
    if (found == at->commands.end()) return nullptr;
    at = &*found;
  }
  return at;
}

std::string value_name(const CLI::Option& option) {
  const std::string text = option.get_type_name();
  const auto [type, check] = split_type(text);
  if (takes_word(option)) return str_cat("[=", check, "]");
  if (is_switch(option)) return {};
  const bool is_text = type == "TEXT";
  if (is_text && !check.empty() && !is_range(check)) return std::string(check);
  if (!is_text && type != "INT" && type != "UINT" && type != "FLOAT") return std::string(type);
  if (option.get_lnames().empty()) return option.get_name(true);
  const std::string_view listed = listed_value_name(
      option.get_lnames().front(), is_text ? ValueType::kText : ValueType::kNumber);
  if (!listed.empty()) return std::string(listed);
  return is_text ? "TEXT" : type == "FLOAT" ? "X" : "N";
}

std::vector<std::string> words_of_value(std::string_view value) {
  if (value.starts_with("[=")) value = value.substr(2, value.size() - 3);
  std::vector<std::string> out;
  if (value.find('|') == value.npos) return out;
  for (size_t at = 0; at <= value.size();) {
    const size_t end = std::min(value.find('|', at), value.size());
    const std::string_view word = value.substr(at, end - at);
    const bool stands_for_others =
        std::any_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
    if (!stands_for_others && !word.empty()) out.emplace_back(word);
    at = end + 1;
  }
  return out;
}

std::string command_line_of(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name()
                           : str_cat(command_line_of(*parent), " ", app.get_name());
}

}  // namespace fathom::cli
