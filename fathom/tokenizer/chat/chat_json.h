// Conversations as clients write them: the fields `messages` and `tools` of the chat completions
// API.
#pragma once

#include <cstddef>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

// What is refused beyond.
inline constexpr size_t kMaxChatMessages = 4'096;
inline constexpr size_t kMaxContentParts = 8'192;  ///< of all messages
inline constexpr size_t kMaxChatTools = 128;
inline constexpr size_t kMaxCallIdBytes = 256;

/// Reads `messages` (roles system, developer, user, assistant, tool, latest_reminder; content a
/// string, null or parts of type text; reasoning_content or reasoning, tool_calls, tool_call_id,
/// prefix) and `tools` (may be null). Fields that are not known are ignored. `developer` counts as
/// system unless `reading` says otherwise. Errors: InvalidArgument, and Unsupported for parts that
/// are no text, beginning with the place ("messages[3].content").
Result<ChatConversation> parse_chat(const Json& messages,
                                    const Json* tools,
                                    const ChatReading& reading = {});

/// Reads the field `response_format`, which may be null: {"type": "text"}, {"type": "json_object"}
/// or {"type": "json_schema", "json_schema": {"schema": {...}}}. Errors: InvalidArgument.
Result<ResponseFormat> parse_response_format(const Json* json);

/// Reads `reasoning_effort`: none, minimal, low, medium, high, xhigh or max. Errors:
/// InvalidArgument, listing the names.
Result<ReasoningEffort> parse_reasoning_effort(std::string_view name);

}  // namespace fathom
