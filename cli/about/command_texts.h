// What documents say of a command besides its flags: how it is typed, what it does, examples.
#pragma once

#include <span>
#include <string_view>

namespace fathom::cli {

struct Example {
  std::string_view line;  ///< as it is typed in a shell
  std::string_view says;  ///< what it does
};

/// Of one command. Every command has one.
struct CommandText {
  std::string_view command;                 ///< "bench kernel"; empty for the program
  std::span<const std::string_view> usage;  ///< a line a form
  std::string_view details;                 ///< paragraphs, an empty line between them
  std::span<const Example> examples;
};

/// The text of a command; null for one that has none.
const CommandText* find_command_text(std::string_view command);

/// What MODEL may be, where exit codes are told from each other, and where values come from:
/// paragraphs for the program's own page.
std::string_view model_text();
std::string_view exit_code_text();
std::string_view value_source_text();

}  // namespace fathom::cli
