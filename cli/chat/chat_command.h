// Commands of a conversation: /help, /set, ... The same whether the model is here or on a server.
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom::cli {

enum class ChatVerb {
  kHelp,
  kClear,
  kSystem,
  kRegenerate,
  kEdit,
  kSave,
  kLoad,
  kSet,
  kTokens,
  kStats,
  kExit,
};

struct ChatCommand {
  ChatVerb verb = ChatVerb::kHelp;
  std::string argument{};  ///< without white space around it
};

/// Whether a line such as "/set temperature 0" begins with the name of a command.
bool names_chat_command(std::string_view line);

/// Reads such a line. Errors: InvalidArgument for a name that is none, with the nearest ones, for
/// an argument that is missing, and for one too many.
Result<ChatCommand> parse_chat_command(std::string_view line);

/// The list that /help prints.
std::string chat_help();

}  // namespace fathom::cli
