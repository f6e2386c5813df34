#include "cli/config/value_sources.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <yaml-cpp/yaml.h>

#include "cli/flags.h"
#include "fathom/api/options.h"
#include "fathom/base/log.h"
#include "fathom/base/near_names.h"
#include "fathom/os/file.h"
#include "fathom/text/utf8.h"

namespace fathom::cli {
namespace {

// What a config file says of a flag.
struct ConfigEntry {
  int line = 0;
  std::vector<std::string> values;
};

using Config = std::map<std::string, ConfigEntry>;  // by long flag names

Status must_be_single(const std::string& path, const std::string& name, int line) {
  return corrupt(str_cat(path, ": line ", line, ": ", name, " must be a single value"));
}

Result<ConfigEntry> read_entry(const std::string& path,
                               const std::string& name,
                               const YAML::Node& value,
                               int line) {
  ConfigEntry entry{.line = line, .values = {}};
  if (value.IsScalar()) {
    entry.values.push_back(value.as<std::string>());
    return entry;
  }
  if (!value.IsSequence()) return must_be_single(path, name, line);
  for (const auto& item : value) {
    if (!item.IsScalar()) return must_be_single(path, name, line);
    entry.values.push_back(item.as<std::string>());
  }
  return entry;
}

Result<Config> read_config_file(const std::string& path) {
  constexpr int64_t kMaxBytes = 1 << 20;
  // yaml-cpp opens whatever is there, a directory too, and guesses at other encodings.
  FATHOM_ASSIGN(const std::string text, read_file(path, kMaxBytes));
  if (!is_valid_utf8(text) || text.find('\0') != std::string::npos) {
    return corrupt(str_cat(path, ": is no UTF-8 text, expected `flag: value` lines"));
  }
  Config out;
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return out;
    if (!root.IsMap()) return corrupt(str_cat(path, ": expected `flag: value` lines"));
    for (const auto& item : root) {
      const int line = item.first.Mark().line + 1;
      auto name = item.first.as<std::string>();
      std::replace(name.begin(), name.end(), '_', '-');
      FATHOM_ASSIGN(ConfigEntry entry, read_entry(path, name, item.second, line));
      if (!out.emplace(name, std::move(entry)).second) {
        return corrupt(str_cat(path, ": line ", line, ": ", name, " appears twice"));
      }
    }
  } catch (const YAML::Exception& error) {
    const YAML::Mark& at = error.mark;
    return corrupt(str_cat(path, ": line ", at.line + 1, ", column ", at.column + 1, ": ",
                           std::string_view(error.msg)));
  }
  return out;
}

Status give(CLI::Option& option,
            const std::vector<std::string>& values,
            const std::string& source) {
  try {
    for (const std::string& value : values)
      option.add_result(value);
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    return invalid_argument(str_cat(source, ": ", std::string_view(error.what())));
  }
  return {};
}

bool takes_several(const CLI::Option& option) {
  return option.get_expected_max() > 1 ||
         option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
}

// The names that a file may call a flag by: its long ones, but for its opposite.
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names = option.get_lnames();
  if (!names.empty()) std::erase(names, "no-" + names.front());
  return names;
}

// "--seed", ...: the names of the flags of `app` and of its commands.
void collect_flags(const CLI::App& app, std::set<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_configurable()) continue;
    for (const std::string& name : names_of(*option))
      names.insert("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    collect_flags(*command, names);
}

// A file may serve several commands: only names that no command knows are mistakes.
Status check_names(const CLI::App& root, const Config& config, const std::string& path) {
  std::set<std::string> known;
  collect_flags(root, known);
  for (const auto& [name, entry] : config) {
    const std::string flag = "--" + name;
    if (known.count(flag) > 0) continue;
    const auto near = near_names(flag, {known.begin(), known.end()}, 1);
    return invalid_argument(str_cat(path, ": no command has a flag ", flag, did_you_mean(near)));
  }
  return {};
}

// What the file says of a flag, by whichever of its names; null: nothing.
Result<const Config::value_type*> find_entry(const Config& config,
                                             const CLI::Option& option,
                                             const std::string& path) {
  const Config::value_type* found = nullptr;
  for (const std::string& name : names_of(option)) {
    const auto entry = config.find(name);
    if (entry == config.end()) continue;
    if (found != nullptr) {
      return corrupt(str_cat(path, ": line ", entry->second.line, ": ", name, " is ", found->first,
                             ", which line ", found->second.line, " has"));
    }
    found = &*entry;
  }
  return found;
}

Status fill_threads(CLI::App& root, ValueSources& sources) {
  constexpr const char* kName = "OMP_NUM_THREADS";
  CLI::Option* const threads = root.get_option("--threads");
  const std::string all = environment(kName);
  const std::string value = all.substr(0, all.find(','));  // others are of nested regions
  EngineOptions any;
  if (threads->count() > 0 || all.empty()) return {};
  if (!set_option(any, "threads", value).ok() || any.threads < 1) {
    log_warn(kName, "='", all, "' is not a number of threads; using one a core");
    return {};
  }
  sources[threads] = str_cat("environment ", kName);
  return give(*threads, {value}, kName);
}

}  // namespace

std::vector<CLI::App*> apps_in_use(CLI::App& root, CLI::App& chosen) {
  std::vector<CLI::App*> apps{&chosen};
  for (CLI::App* sub : chosen.get_subcommands())
    apps.push_back(sub);
  apps.push_back(&root);
  return apps;
}

Result<ValueSources> fill_from_environment_and_config(CLI::App& root,
                                                      CLI::App& chosen,
                                                      const std::string& config_file) {
  ValueSources sources;
  const std::string path = config_file.empty() ? environment("FATHOM_CONFIG") : config_file;
  Config config;
  if (!path.empty()) {
    FATHOM_ASSIGN(config, read_config_file(path));
    FATHOM_TRY(check_names(root, config, path));
  }
  for (CLI::App* app : apps_in_use(root, chosen)) {
    for (CLI::Option* option : app->get_options()) {
      if (option->get_lnames().empty() || !option->get_configurable() || option->count() > 0) {
        continue;
      }
      const std::string& name = option->get_lnames().front();
      const std::string variable = environment_name(name);
      if (const std::string value = environment(variable); !value.empty()) {
        FATHOM_TRY(give(*option, {value}, variable));
        sources[option] = str_cat("environment ", variable);
        continue;
      }
      FATHOM_ASSIGN(const Config::value_type* const entry, find_entry(config, *option, path));
      if (entry == nullptr) continue;
      const auto& [line, values] = entry->second;
      if (values.size() != 1 && !takes_several(*option)) {
        return must_be_single(path, entry->first, line);
      }
      FATHOM_TRY(give(*option, values, str_cat(path, ": ", entry->first)));
      sources[option] = path;
    }
  }
  FATHOM_TRY(fill_threads(root, sources));
  return sources;
}

}  // namespace fathom::cli
