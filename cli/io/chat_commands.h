// What a person types in a chat besides messages: /clear, /system, ... The same whether the model
// is here or on a server.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom::cli {

/// What a chat does with what is typed.
struct ChatActions {
  /// Forgets the conversation and begins with this system message, which may be empty.
  std::function<void(const std::string& system)> start_again;
  /// Figures of the last answer; empty before there is one.
  std::function<std::string()> stats;
  /// Answers a message on the terminal.
  std::function<Status(const std::string& text)> say;
};

/// Reads lines up to /exit or the end of the input. /clear starts again with `system`. Ctrl-C while
/// a line is typed does nothing. A message that is refused (InvalidArgument) is told to a person,
/// who goes on; where lines come from a file or a pipe it is the end. Errors: those of reading and
/// of `say`.
Status run_chat_lines(const std::string& system, const ChatActions& actions);

/// After an answer that could not be given: what went wrong, and that /clear starts again.
void print_chat_problem(std::string_view message);

}  // namespace fathom::cli
