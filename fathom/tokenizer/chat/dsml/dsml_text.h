// What V3.2 and V4 print alike: calls in DSML, schemas of tools, response formats, and where what
// belongs to the whole conversation goes.
//
//   \n\n<｜DSML｜SECTION>\n
//   <｜DSML｜invoke name="NAME">\n
//   <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>\n   (joined by \n)
//   </｜DSML｜invoke>\n                                                      (calls joined by \n)
//   </｜DSML｜SECTION>
//
// (line ends only where \n is written). ｜DSML｜ is one token, the brackets and names are text. A
// string stands as it is, string="true"; any other value is JSON, string="false". A call without
// arguments has an empty line between its tags. Arguments that are no JSON object are one string
// named "arguments".
#pragma once

#include <string_view>
#include <vector>

#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

/// Appends the calls of a turn of the assistant; nothing if there are none. `section` is the name
/// of the outer tag: "function_calls" in V3.2, "tool_calls" in V4. Sampled calls begin with the
/// ｜DSML｜ of that tag.
void append_dsml_calls(PromptText& prompt, const ChatMessage& message, std::string_view section);

/// Appends the schemas, one a line, without a line end behind the last.
void append_tool_schemas(PromptText& prompt,
                         const std::vector<ToolDefinition>& tools,
                         ToolSchema style);

/// Appends "\n\n## Response Format:..." for a schema.
void append_response_schema(PromptText& prompt, const Json& schema);

/// The messages with the tools and the response format of the conversation in its first system
/// message; where none comes first, an empty one is put there.
std::vector<ChatMessage> with_first_system_message(const ChatConversation& conversation);

}  // namespace fathom
