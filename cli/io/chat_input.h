// The prompt format of a model and conversations from files.
#pragma once

#include <string>

#include "fathom/base/status.h"
#include "fathom/tokenizer/chat/chat.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::cli {

/// The format named by --chat-format, or with an empty name the one of the model's family and
/// template.
Result<const ChatFormat*> chat_format_of_model(std::string_view model_type,
                                               const std::string& directory,
                                               const Tokenizer& tokenizer,
                                               const std::string& name);

/// model_type of config.json; empty without that file. Errors: Io, Corrupt.
Result<std::string> model_type_of(const std::string& directory);

/// {"messages": [...], "tools": [...]}, or the list of messages alone.
Result<ChatConversation> read_conversation(const std::string& path);

}  // namespace fathom::cli
