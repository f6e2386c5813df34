// Conversations as clients write them: the fields `messages` and `tools` of the chat completions
// API.
#pragma once

#include "fathom/base/status.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

/// Reads `messages` (roles system, developer, user, assistant, tool; content a string, null or
/// parts of type text; reasoning_content, tool_calls, tool_call_id, prefix) and `tools` (may be
/// null). Fields that are not known are ignored. `developer` counts as system. Errors:
/// InvalidArgument, beginning with the place ("messages[3].content").
Result<ChatConversation> parse_chat(const Json& messages, const Json* tools);

}  // namespace fathom
