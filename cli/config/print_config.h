// What the flags of a run are and where they come from, and what flags there are.
#pragma once

#include <string>

#include "cli/config/value_sources.h"

namespace fathom::cli {

enum class ConfigStyle { kYaml, kJson };

/// The flags of the commands in use with their values, and what gave each of them. YAML is a file
/// that `--config` takes, the sources its comments. Flags that have no value are left out.
std::string print_config(CLI::App& root,
                         CLI::App& chosen,
                         const ValueSources& sources,
                         ConfigStyle style);

/// Every flag of the program as Markdown, with values, default, environment name and help: first
/// the options of the engine, by group, with the commands that take them; then each command's own.
std::string print_all_flags(const CLI::App& root);

}  // namespace fathom::cli
