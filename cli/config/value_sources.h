// Where a flag's value comes from: command line > environment FATHOM_<FLAG> > config file >
// default.
//
// The argument parser fills what the command line gives; this code fills the rest, because the
// parser's own precedence is another one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fathom/base/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fathom::cli {

/// What gave a flag its value: "environment FATHOM_THREADS", "flags.yaml". Flags of the command
/// line and those with their default are not in it.
using ValueSources = std::map<const CLI::Option*, std::string>;

/// Gives every option that the command line left out the value of its environment variable or of
/// the config file (`config_file`, else FATHOM_CONFIG), and --threads that of OMP_NUM_THREADS in
/// place of its default. Errors: those of the file, with the line; InvalidArgument for a value that
/// a flag refuses, and for a key that no command of the program knows, with near names.
Result<ValueSources> fill_from_environment_and_config(CLI::App& root,
                                                      CLI::App& chosen,
                                                      const std::string& config_file);

/// The commands whose flags count, the chosen one first: those below it, and the root.
std::vector<CLI::App*> apps_in_use(CLI::App& root, CLI::App& chosen);

}  // namespace fathom::cli
