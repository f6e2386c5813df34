// The turns of V4: users and results of tools in a row are one turn of the user.
#pragma once

#include <string_view>
#include <vector>

#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

/// One part of a user's turn.
struct TurnBlock {
  enum class Kind { kText, kToolResult };
  Kind kind;
  std::string_view text;
  std::string_view call_id;  ///< of a result
};

/// A turn. Views into the messages that it was made of.
struct MergedTurn {
  const ChatMessage* message;     ///< its first one
  ChatRole role;                  ///< never kTool
  ChatTask task;                  ///< of its first message
  std::vector<TurnBlock> blocks;  ///< of a user
};

/// Merges. A result joins a user's turn right before it, a user's text too unless that turn has a
/// task; the task of a text that joins is lost, as in the reference. Results within a turn come in
/// the order of the calls of the last assistant that made calls; those of unknown calls count as of
/// the first call.
std::vector<MergedTurn> merge_turns(const std::vector<ChatMessage>& messages);

/// The place of the last turn of a user or developer, -1 if there is none.
int64_t last_user_turn(const std::vector<MergedTurn>& turns);

}  // namespace fathom
