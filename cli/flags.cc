#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <yaml-cpp/yaml.h>

#include "cli/integers.h"
#include "fathom/base/log.h"
#include "fathom/base/near_names.h"
#include "fathom/os/cpu_info.h"
#include "fathom/os/file.h"
#include "fathom/os/thread_pool.h"
#include "fathom/text/utf8.h"
#include "fathom/weights/model_path.h"

namespace fathom::cli {
namespace {

std::string environment_name(const std::string& flag) {
  std::string out = "FATHOM_";
  for (char c : flag) {
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

Status set_option(CLI::Option& option, const std::string& value, const std::string& source) {
  try {
    option.add_result(value);
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    return invalid_argument(str_cat(source, ": ", std::string_view(error.what())));
  }
  return {};
}

// "--seed", ...: the long names of the flags that the commands of `app` take, and theirs in turn.
void collect_flags_below(const CLI::App& app, std::set<std::string>& names) {
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames())
        names.insert("--" + name);
    }
    collect_flags_below(*command, names);
  }
}

}  // namespace

std::string environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::string{} : std::string(value);
}

void add_global_flags(CLI::App& app, GlobalFlags& flags, std::string& config_file) {
  app.add_flag("-v,--verbose", flags.verbose, "Say more; twice for debugging");
  app.add_flag("-q,--quiet", flags.quiet, "Errors only, no progress");
  app.add_option("--log-level", flags.log_level, "error, warn, info, debug or trace")
      ->capture_default_str();
  app.add_option("--color", flags.color, "auto, on or off (NO_COLOR is honoured)")
      ->capture_default_str();
  app.add_option("--threads", flags.threads, "CPU threads; 0: one a physical core")
      ->check(integer_range(0, ThreadPool::kMaxThreads))
      ->capture_default_str();
  app.add_option("--isa", flags.isa, "Use at most portable, avx2, avx512 or amx; auto: all")
      ->capture_default_str();
  app.add_option("--config", config_file,
                 "YAML file of flags: `threads: 2` (the environment has FATHOM_THREADS)");
}

CLI::Validator finite_range(double low, double high) {
  const std::string range = str_cat(low, " to ", high);
  const auto check = [low, high, range](std::string& text) -> std::string {
    double value = 0;
    // The comparison is false for NaN.
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return {};
    return str_cat("found '", text, "', expected a number from ", range);
  };
  return CLI::Validator(check, str_cat("FLOAT in [", low, " - ", high, "]"));
}

Result<std::map<std::string, std::string>> read_config_file(const std::string& path) {
  constexpr int64_t kMaxBytes = 1 << 20;
  // yaml-cpp opens whatever is there, a directory too, and guesses at other encodings.
  FATHOM_ASSIGN(const std::string text, read_file(path, kMaxBytes));
  if (!is_valid_utf8(text) || text.find('\0') != std::string::npos) {
    return corrupt(str_cat(path, ": is no UTF-8 text, expected `flag: value` lines"));
  }
  std::map<std::string, std::string> out;
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return out;
    if (!root.IsMap()) return corrupt(str_cat(path, ": expected `flag: value` lines"));
    for (const auto& entry : root) {
      if (!entry.second.IsScalar()) {
        return corrupt(str_cat(path, ": line ", entry.first.Mark().line + 1, ": ",
                               entry.first.as<std::string>(), " must be a single value"));
      }
      const auto name = entry.first.as<std::string>();
      if (!out.emplace(name, entry.second.as<std::string>()).second) {
        return corrupt(
            str_cat(path, ": line ", entry.first.Mark().line + 1, ": ", name, " appears twice"));
      }
    }
  } catch (const YAML::Exception& error) {
    return corrupt(str_cat(path, ": ", std::string_view(error.what())));
  }
  return out;
}

Status fill_from_environment_and_config(CLI::App& root,
                                        CLI::App& chosen,
                                        const std::string& config_file) {
  std::string path = config_file.empty() ? environment("FATHOM_CONFIG") : config_file;
  std::map<std::string, std::string> config;
  if (!path.empty()) {
    FATHOM_ASSIGN(config, read_config_file(path));
  }
  std::vector<CLI::App*> apps{&root, &chosen};
  for (CLI::App* sub : chosen.get_subcommands())
    apps.push_back(sub);
  for (CLI::App* app : apps) {
    for (CLI::Option* option : app->get_options()) {
      if (option->get_lnames().empty()) continue;
      const std::string& name = option->get_lnames().front();
      if (name == "help" || name == "version" || name == "config") continue;
      const auto in_config = config.find(name);
      const bool given = option->count() > 0;
      if (const std::string value = environment(environment_name(name)); !given && !value.empty()) {
        FATHOM_TRY(set_option(*option, value, environment_name(name)));
      } else if (!given && in_config != config.end()) {
        FATHOM_TRY(set_option(*option, in_config->second, str_cat(path, ": ", name)));
      }
      if (in_config != config.end()) config.erase(in_config);
    }
  }
  // A file may serve several commands: only names that no command knows are mistakes.
  std::set<std::string> known;
  collect_flags_below(root, known);
  for (const auto& entry : config) {
    const std::string flag = "--" + entry.first;
    if (known.count(flag) > 0) continue;
    const auto near = near_names(flag, {known.begin(), known.end()}, 1);
    return invalid_argument(str_cat(path, ": no command has a flag ", flag, did_you_mean(near)));
  }
  return {};
}

Status apply_log_flags(const GlobalFlags& flags) {
  const std::pair<const char*, LogLevel> levels[] = {{"error", LogLevel::kError},
                                                     {"warn", LogLevel::kWarn},
                                                     {"info", LogLevel::kInfo},
                                                     {"debug", LogLevel::kDebug},
                                                     {"trace", LogLevel::kTrace}};
  const auto* found = std::find_if(std::begin(levels), std::end(levels),
                                   [&](const auto& l) { return flags.log_level == l.first; });
  if (found == std::end(levels)) {
    return invalid_argument(str_cat("--log-level is '", flags.log_level,
                                    "'; known are error, warn, info, debug and trace"));
  }
  LogLevel level = found->second;
  if (flags.verbose >= 1) level = std::max(level, LogLevel::kDebug);
  if (flags.verbose >= 2) level = LogLevel::kTrace;
  if (flags.quiet) level = LogLevel::kError;
  set_log_level(level);
  if (flags.color != "auto" && flags.color != "on" && flags.color != "off") {
    return invalid_argument(str_cat("--color is '", flags.color, "'; known are auto, on and off"));
  }
  return {};
}

Result<std::string> resolve_model_argument(const std::string& argument) {
  std::vector<std::string> roots;
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) {
    roots.push_back(cache);
  } else if (const std::string home = environment("HF_HOME"); !home.empty()) {
    roots.push_back(home + "/hub");
  } else if (const std::string user = environment("HOME"); !user.empty()) {
    roots.push_back(user + "/.cache/huggingface/hub");
  }
  Result<std::string> directory = resolve_model(argument, roots);
  const bool is_path = argument.starts_with('/') || argument.starts_with('.');
  if (!directory.ok() && is_path) return not_found(directory.status().message());
  return directory;
}

Result<int> resolve_threads(int flag) {
  if (flag > 0) return flag;
  if (const std::string omp = environment("OMP_NUM_THREADS"); !omp.empty()) {
    int value = 0;
    const auto [end, error] = std::from_chars(omp.data(), omp.data() + omp.size(), value);
    if (error == std::errc{} && *end == '\0' && value >= 1 && value <= ThreadPool::kMaxThreads) {
      return value;
    }
    log_warn("OMP_NUM_THREADS='", omp, "' is not a number of threads; using one a core");
  }
  return std::min(cpu_info().num_cores, cpu_info().num_cpus());
}

}  // namespace fathom::cli
