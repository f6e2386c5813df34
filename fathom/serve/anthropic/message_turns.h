// The turns of a messages request: `system` and `messages` with their blocks, as a conversation.
//
//   user       text ...                    -> one message of a user
//              tool_result                 -> a message of a tool, in its place between the texts
//   assistant  thinking, text, tool_use    -> one message: reasoning, content, calls
#pragma once

#include "fathom/serve/anthropic/thinking_signer.h"
#include "fathom/serve/fields.h"
#include "fathom/serve/prompt/turn_reader.h"

namespace fathom::serve {

/// Reads `system` and `messages`. Blocks of images, documents and of server tools are refused with
/// `unsupported_parameter`; redacted_thinking is left out, and so is thinking whose signature does
/// not hold. A result with is_error begins with "Error: ". If the last message is the assistant's
/// and calls no tool, the answer goes on with it. The line that Claude Code puts before its system
/// text, x-anthropic-billing-header, is left out: it differs in every request and says nothing to
/// the model.
PlacedConversation read_message_turns(Fields& fields,
                                      const ChatReading& reading,
                                      const ThinkingSigner& signer);

}  // namespace fathom::serve
