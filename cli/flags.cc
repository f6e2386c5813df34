#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "cli/config/engine_flags.h"
#include "cli/config/model_places.h"
#include "cli/io/terminal.h"
#include "fathom/base/hint.h"
#include "fathom/base/log.h"
#include "fathom/base/near_names.h"
#include "fathom/os/file.h"
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
  app.add_option("--log-level", flags.log_level, "How much is told on standard error")
      ->type_name("error|warn|info|debug|trace")
      ->capture_default_str();
  app.add_option("--color", flags.color,
                 "Colours and other escape codes; auto: on a terminal that is not dumb, "
                 "without NO_COLOR")
      ->type_name("auto|on|off")
      ->capture_default_str();
  add_engine_flags(app, flags.engine, kEveryUse, {OptionGroup::kMachine});
  app.add_option("--config", flags.config_file,
                 "YAML file of flags: `threads: 2` (the environment has FATHOM_THREADS)")
      ->configurable(false);
  app.add_flag("--print-config{yaml}", flags.print_config,
               "Print what the flags are and where each comes from, as YAML, or with "
               "--print-config=json; run nothing")
      ->check(one_of({"yaml", "json"}))
      ->configurable(false);
  app.set_help_flag("-h,--help", "Print the help of a command, and end");
  app.set_help_all_flag("--help-all",
                        "Print it with limits, other spellings and the environment, and end; "
                        "without a command that of all, as Markdown");
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

CLI::Validator one_of(std::vector<std::string> words) {
  std::string list;
  for (const std::string& word : words)
    str_append(list, str_cat(list.empty() ? "" : "|", word));
  const auto check = [list, words = std::move(words)](const std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) return std::string{};
    return str_cat("is '", text, "', expected one of ", list,
                   did_you_mean(near_names(text, words)));
  };
  return CLI::Validator(check, list);
}

namespace {

// "always" and "never" are the words of grep, ls and git.
Status apply_color(const std::string& color) {
  const std::string terminal = environment("TERM");
  const bool plain = !environment("NO_COLOR").empty() || terminal.empty() || terminal == "dumb";
  if (color == "auto") {
    set_escape_codes(plain ? EscapeCodes::kNever : EscapeCodes::kOnTerminals);
  } else if (color == "on" || color == "always") {
    set_escape_codes(EscapeCodes::kAlways);
  } else if (color == "off" || color == "never") {
    set_escape_codes(EscapeCodes::kNever);
  } else {
    return invalid_argument(str_cat("--color is '", color, "'; known are auto, on and off"));
  }
  return {};
}

}  // namespace

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
  return apply_color(flags.color);
}

namespace {

// The names of models that begin so, else those near it.
std::vector<std::string> models_like(const std::string& name) {
  std::vector<std::string> known = known_models();
  std::vector<std::string> longer;
  std::copy_if(known.begin(), known.end(), std::back_inserter(longer),
               [&](const std::string& model) { return model.starts_with(name); });
  return longer.empty() ? near_names(name, std::move(known)) : longer;
}

}  // namespace

Result<std::string> resolve_model_argument(const std::string& argument) {
  const bool is_name =
      !argument.empty() && argument.find('/') == std::string::npos && argument.front() != '.';
  if (is_name && path_kind(argument) == PathKind::kMissing) {
    for (const std::string& root : shipped_model_roots()) {
      const std::string directory = join_path(root, argument);
      if (path_kind(directory) == PathKind::kDirectory) return directory;
    }
  }
  Result<std::string> directory = resolve_model(argument, hub_cache_roots());
  if (directory.ok()) {
    FATHOM_TRY(check_model_folder(*directory));
    return directory;
  }
  if (is_name && directory.status().code() == StatusCode::kNotFound) {
    Status near = not_found(
        str_cat(without_hint(directory.status().message()), did_you_mean(models_like(argument))));
    return with_hint(std::move(near),
                     "`fathom version --json` lists the models that have a name here");
  }
  return directory;
}

}  // namespace fathom::cli
