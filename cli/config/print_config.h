// What the flags of a run are and where they come from.
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

}  // namespace fathom::cli
