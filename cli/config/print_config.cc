#include "cli/config/print_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <yaml-cpp/yaml.h>

#include "fathom/api/options.h"
#include "fathom/text/figures.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

using Apps = std::vector<const CLI::App*>;

struct Setting {
  std::string name;
  std::vector<std::string> values;
  std::string source;
};

bool is_switch(const CLI::Option& option) {
  return option.get_expected_max() == 0;
}

// A flag that was given twice, such as -vv, counts.
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::vector<std::string> given = option.results();
  if (option.check_lname("api-key")) return {};  // what is printed may be shown to others
  if (is_switch(option) && given.size() > 1) return {str_cat(given.size())};
  if (!given.empty()) return given;
  const std::string usual = option.get_default_str();
  if (usual.empty() && is_switch(option)) return {"false"};
  return usual.empty() ? std::vector<std::string>{} : std::vector{usual};
}

std::vector<Setting> settings_of(CLI::App& root, CLI::App& chosen, const ValueSources& sources) {
  std::vector<Setting> out;
  for (const CLI::App* app : apps_in_use(root, chosen)) {
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_lnames().empty() || !option->get_configurable()) continue;
      std::vector<std::string> values = values_of(*option);
      if (values.empty()) continue;
      const auto filled = sources.find(option);
      out.push_back({option->get_lnames().front(), std::move(values),
                     filled != sources.end() ? filled->second
                     : option->count() > 0   ? "command line"
                                             : "default"});
    }
  }
  return out;
}

std::string to_yaml(const std::vector<Setting>& settings) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const Setting& s : settings) {
    out << YAML::Key << s.name << YAML::Value;
    if (s.values.size() == 1) {
      out << s.values.front();
    } else {
      out << YAML::Flow << s.values;
    }
    out << YAML::Comment(s.source);
  }
  out << YAML::EndMap;
  return str_cat(out.c_str(), "\n");
}

std::string to_json(const std::vector<Setting>& settings) {
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object();
  for (const Setting& s : settings) {
    out.key(s.name).begin_object().key("value");
    if (s.values.size() == 1) {
      out.string(s.values.front());
    } else {
      out.begin_array();
      for (const std::string& value : s.values)
        out.string(value);
      out.end_array();
    }
    out.key("source").string(s.source).end_object();
  }
  out.end_object();
  return out.take() + "\n";
}

// "fathom bench model" without its first word.
std::string words_of(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  if (parent == nullptr) return {};
  const std::string before = words_of(*parent);
  return before.empty() ? app.get_name() : str_cat(before, " ", app.get_name());
}

void collect_commands(const CLI::App& app, Apps& out) {
  out.push_back(&app);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    collect_commands(*command, out);
}

bool is_engine_flag(const CLI::Option& option, const OptionInfo& row) {
  return option.get_group() == group_heading(row.group) &&
         option.check_lname(std::string(row.flag));
}

bool is_engine_flag(const CLI::Option& option) {
  const std::span<const OptionInfo> rows = option_table();
  return std::any_of(rows.begin(), rows.end(),
                     [&](const OptionInfo& row) { return is_engine_flag(option, row); });
}

// "run, chat": the commands that take an option of the engine; the root's are every command's.
std::string takers_of(const OptionInfo& row, const Apps& apps) {
  std::string out;
  for (const CLI::App* app : apps) {
    for (const CLI::Option* option : app->get_options()) {
      if (!is_engine_flag(*option, row)) continue;
      const std::string words = app->get_parent() == nullptr ? "all" : words_of(*app);
      str_append(out, str_cat(out.empty() ? "" : ", ", words));
    }
  }
  return out.empty() ? "the library" : out;
}

std::string code(std::string_view text) {
  return text.empty() ? std::string{} : str_cat("`", text, "`");
}

std::string engine_table(const Apps& apps) {
  const EngineOptions usual;
  std::string out;
  MarkdownTable table({});
  const std::span<const OptionInfo> rows = option_table();
  for (size_t i = 0; i < rows.size(); ++i) {
    const OptionInfo& row = rows[i];
    const bool first = i == 0 || rows[i - 1].group != row.group;
    if (first) table = MarkdownTable({"flag", "value", "default", "environment", "commands", ""});
    std::string names = code(str_cat("--", row.flag));
    std::string alias;
    for (const char c : str_cat(row.aliases, " ")) {
      if (c != ' ') alias += c;
      if (c == ' ' && !alias.empty()) {
        str_append(names, " " + code(str_cat(alias.size() == 1 ? "-" : "--", alias)));
        alias.clear();
      }
    }
    const bool takes_words = !row.words().empty() || row.value().empty();
    table.add({names, code(takes_words ? row.value() : row.expected()), code(row.get(usual)),
               code(row.environment()), takers_of(row, apps), std::string(row.help)});
    const bool last = i + 1 == rows.size() || rows[i + 1].group != row.group;
    if (last) str_append(out, str_cat("\n### ", group_heading(row.group), "\n\n", table.str()));
  }
  return out;
}

std::string own_table(const CLI::App& app) {
  MarkdownTable table({"flag", "value", "default", "environment", ""});
  for (const CLI::Option* option : app.get_options()) {
    const bool is_help = option == app.get_help_ptr() || option == app.get_help_all_ptr();
    if (option->get_lnames().empty() || is_help || is_engine_flag(*option)) continue;
    const std::string& name = option->get_lnames().front();
    table.add({code(option->get_name(false, true)), code(option->get_type_name()),
               code(option->get_default_str()),
               option->get_configurable() ? code(environment_name(name)) : "",
               option->get_description()});
  }
  return table.empty() ? std::string{} : table.str();
}

}  // namespace

std::string print_config(CLI::App& root,
                         CLI::App& chosen,
                         const ValueSources& sources,
                         ConfigStyle style) {
  const std::vector<Setting> settings = settings_of(root, chosen, sources);
  return style == ConfigStyle::kJson ? to_json(settings) : to_yaml(settings);
}

std::string print_all_flags(const CLI::App& root) {
  Apps apps;
  collect_commands(root, apps);
  std::string out = "# Flags\n\n## Options of the engine\n" + engine_table(apps);
  for (const CLI::App* app : apps) {
    const std::string table = own_table(*app);
    if (table.empty()) continue;
    const std::string words = words_of(*app);
    str_append(
        out, str_cat("\n## ", words.empty() ? "Every command" : "fathom " + words, "\n\n", table));
  }
  return out;
}

}  // namespace fathom::cli
