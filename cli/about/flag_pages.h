// Every command and flag in one document: as Markdown for docs/generated/flags.md, as JSON for
// programs.
#pragma once

#include <string>

#include "cli/about/command_doc.h"

namespace fathom::cli {

/// First the options of the engine, by group, with the commands that take them; then each command
/// with its usage, its examples and its own flags.
std::string flags_markdown(const CommandDoc& root);

/// Schema fathom.help/1, see docs/json.md.
std::string help_json(const CommandDoc& root);

}  // namespace fathom::cli
