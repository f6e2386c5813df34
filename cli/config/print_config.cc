#include "cli/config/print_config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <yaml-cpp/yaml.h>

#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

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
  const bool last_counts = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeLast;
  if (last_counts && !given.empty()) return {given.back()};
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

}  // namespace

std::string print_config(CLI::App& root,
                         CLI::App& chosen,
                         const ValueSources& sources,
                         ConfigStyle style) {
  const std::vector<Setting> settings = settings_of(root, chosen, sources);
  return style == ConfigStyle::kJson ? to_json(settings) : to_yaml(settings);
}

}  // namespace fathom::cli
