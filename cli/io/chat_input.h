// The prompt format of a model and conversations from files.
#pragma once

#include <string>

#include "fathom/base/status.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom::cli {

/// The format named by --chat-format, or with an empty name the one of the model's family and
/// template.
Result<const ChatFormat*> chat_format_of_model(const std::string& directory,
                                               const std::string& name);

/// {"messages": [...], "tools": [...]}, or the list of messages alone.
Result<ChatConversation> read_conversation(const std::string& path);

}  // namespace fathom::cli
