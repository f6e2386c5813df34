// Conversations that /save writes and /load reads, schema fathom.chat/1 of docs/chat.md.
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom::cli {

/// The file's text.
std::string conversation_json(const ChatConversation& conversation, std::string_view model);

/// Writes it so that no reader sees half of it. Errors: those of write_file.
Status save_conversation(const std::string& path,
                         const ChatConversation& conversation,
                         std::string_view model);

/// Errors: those of read_conversation; Corrupt for one without messages, and for tools, which a
/// chat does not have. Each names the file.
Result<ChatConversation> load_conversation(const std::string& path, const ChatReading& reading);

}  // namespace fathom::cli
