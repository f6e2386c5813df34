#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "cli/config/engine_flags.h"
#include "fathom/base/log.h"
#include "fathom/weights/checkpoint/model_folder.h"
#include "fathom/weights/checkpoint/model_path.h"

namespace fathom::cli {

std::string environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::string{} : std::string(value);
}

void add_global_flags(CLI::App& app, GlobalFlags& flags) {
  app.add_flag("-v,--verbose", flags.verbose, "Say more; twice for debugging");
  app.add_flag("-q,--quiet", flags.quiet, "Errors only, no progress");
  app.add_option("--log-level", flags.log_level, "error, warn, info, debug or trace")
      ->capture_default_str();
  app.add_option("--color", flags.color, "auto, on or off (NO_COLOR is honoured)")
      ->capture_default_str();
  add_engine_flags(app, flags.engine, kEveryUse, {OptionGroup::kMachine});
  app.add_option("--config", flags.config_file,
                 "YAML file of flags: `threads: 2` (the environment has FATHOM_THREADS)")
      ->configurable(false);
  app.add_flag("--print-config{yaml}", flags.print_config,
               "Print what the flags are and where each comes from, as YAML, or with "
               "--print-config=json; run nothing")
      ->check(CLI::IsMember({"yaml", "json"}).description(""))
      ->configurable(false);
  app.set_help_all_flag("--help-all",
                        "Every flag with its default and environment variable, as Markdown");
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
  FATHOM_ASSIGN(std::string directory, resolve_model(argument, roots));
  FATHOM_TRY(check_model_folder(directory));
  return directory;
}

}  // namespace fathom::cli
