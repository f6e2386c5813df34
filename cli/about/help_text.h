// The help of a command as it stands on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cli/about/command_doc.h"

namespace fathom::cli {

/// How much of each flag is told.
enum class HelpDetail {
  kUsual,  ///< names, value, what it does, its default where there is one
  kAll,    ///< also other spellings, limits, the environment, and that there is no default
};

/// Columns that help has on standard output: those of a terminal, from 60 to 120; else 80.
size_t help_columns();

/// What --help prints of a command: usage, details, examples, its flags by group, and those of
/// every command, which are `root`'s. Lines have at most `columns` where words allow it; those that
/// are typed stay whole.
std::string help_text(const CommandDoc& root,
                      const CommandDoc& command,
                      HelpDetail detail,
                      size_t columns);

/// Text in lines of at most `width` columns, each behind `indent` blanks; the lines of the text
/// itself stay apart.
std::string wrapped(std::string_view text, size_t indent, size_t width);

/// "Where the model runs. Default: cpu. ..." without the first: the facts of a flag as sentences,
/// for pages that have room.
std::string facts_of(const FlagDoc& flag);

}  // namespace fathom::cli
