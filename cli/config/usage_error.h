// What the parser refuses, in our words: what is wrong, and what to type instead.
#pragma once

#include "cli/config/spelling.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace fathom::cli {

/// The refusal behind an error of the parser. `root` is what was parsed.
Refusal explain_usage(const CLI::App& root, const CLI::ParseError& error);

/// The command that was typed, or as much of it as there is.
const CLI::App& innermost(const CLI::App& app);

}  // namespace fathom::cli
