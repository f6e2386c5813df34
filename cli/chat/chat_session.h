// A chat from its first line to its end.
#pragma once

#include <string>

#include "cli/chat/chat_model.h"
#include "cli/chat/chat_settings.h"

namespace fathom::cli {

struct ChatStart {
  std::string system;      ///< the system message; empty: none
  SettingsTable settings;  ///< good for the model
  bool quiet = false;      ///< no remarks
};

/// Reads messages and commands up to /exit or the end of the input, and has them answered.
/// Remarks, such as the figures below an answer, are for a person at a terminal. What is refused is
/// told to a person, who goes on; where lines come from a file or a pipe it is the end. Errors:
/// those of reading, of commands and of answers.
Status run_chat(ChatModel& model, ChatStart start);

}  // namespace fathom::cli
