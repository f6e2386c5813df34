// Where a flag's value comes from: command line > environment FATHOM_<FLAG> > config file >
// default.
//
// The argument parser fills what the command line gives; this code fills the rest, because the
// parser's own precedence is another one.
#pragma once

#include <map>
#include <string>

#include "cli/command.h"

namespace CLI {
class Validator;
}

namespace fathom::cli {

/// Adds the flags of every command, with FATHOM_<FLAG> names in the help.
void add_global_flags(CLI::App& app, GlobalFlags& flags, std::string& config_file);

/// Accepts a finite number from `low` to `high`. CLI::Range lets NaN through, since it compares
/// false with both ends.
CLI::Validator finite_range(double low, double high);

/// Long flag names to values, as a `--config` file gives them. Errors: NotFound, Corrupt with line.
Result<std::map<std::string, std::string>> read_config_file(const std::string& path);

/// Gives every option that the command line left out the value of its environment variable or of
/// the config file. A config key that no option of the program has is an error with near names.
Status fill_from_environment_and_config(CLI::App& root,
                                        CLI::App& chosen,
                                        const std::string& config_file);

/// The value of an environment variable, empty if unset. The only reader in the program.
std::string environment(const std::string& name);

/// Applies verbosity and level to the log.
Status apply_log_flags(const GlobalFlags& flags);

/// The model folder of a MODEL argument: a directory, or ORG/NAME in the local Hugging Face cache.
Result<std::string> resolve_model_argument(const std::string& argument);

/// The number of threads to use: the flag, else OMP_NUM_THREADS, else one a physical core.
Result<int> resolve_threads(int flag);

}  // namespace fathom::cli
