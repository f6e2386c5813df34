// Manual pages, as roff of the man macros.
#pragma once

#include <string>

#include "cli/about/command_doc.h"

namespace fathom::cli {

/// The page of a command: names, usage, details, examples, its flags and those of every command,
/// which are `root`'s.
std::string man_page(const CommandDoc& root, const CommandDoc& command);

/// "fathom-bench-kernel", the name of its page; section 1.
std::string man_page_name(const CommandDoc& command);

}  // namespace fathom::cli
