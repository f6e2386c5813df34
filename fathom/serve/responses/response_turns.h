// The turns of a responses request: `instructions` and the items of `input`, as a conversation.
//
//   reasoning, message of the assistant, function_call ...   -> one message of the assistant
//   function_call_output                                     -> a message of a tool
//   message of user, system, developer                       -> one message; developer is system
#pragma once

#include "fathom/serve/fields.h"
#include "fathom/serve/prompt/turn_reader.h"

namespace fathom::serve {

/// Reads them. Reasoning without an answer behind it is left out, as is a summary of reasoning.
/// Items and parts of other types are refused with `unsupported_parameter`. An empty array is an
/// empty text of a user.
PlacedConversation read_response_turns(Fields& fields, const ChatReading& reading);

}  // namespace fathom::serve
