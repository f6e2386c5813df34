// Flags of every command, and what they ask of the machine.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace CLI {
class Validator;
}

namespace fathom::cli {

/// Adds the flags of every command.
void add_global_flags(CLI::App& app, GlobalFlags& flags);

/// Accepts a finite number from `low` to `high`. CLI::Range lets NaN through, since it compares
/// false with both ends.
CLI::Validator finite_range(double low, double high);

/// Accepts one of the words, and names them and the near ones to who gives another.
CLI::Validator one_of(std::vector<std::string> words);

/// The value of an environment variable, empty if unset. The only reader in the program.
std::string environment(const std::string& name);

/// Applies verbosity and level to the log.
Status apply_log_flags(const GlobalFlags& flags);

/// The model folder of a MODEL argument: a directory, the name of a model that came with the
/// program, or ORG/NAME in the local Hugging Face cache. Errors: those of resolve_model and
/// check_model_folder.
Result<std::string> resolve_model_argument(const std::string& argument);

}  // namespace fathom::cli
