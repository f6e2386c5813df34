// The chat formats by name, and which one a checkpoint needs.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

const ChatFormat& chat_v2();   ///< "User: ", "Assistant:": DeepSeek-V2, V2-Lite
const ChatFormat& chat_v25();  ///< control tokens: DeepSeek-V2.5
const ChatFormat& chat_v3();   ///< DeepSeek-V3
const ChatFormat& chat_r1();   ///< V3 that thinks first: DeepSeek-R1
const ChatFormat& chat_v31();  ///< thinking by switch: DeepSeek-V3.1, V3.1-Terminus, V3.2-Exp

/// All formats.
std::span<const ChatFormat* const> chat_formats();

/// The format of `--chat-format NAME`: v2, v2.5, v3, r1, v3.1. Errors: InvalidArgument, listing the
/// names.
Result<const ChatFormat*> find_chat_format(std::string_view name);

/// The format of a checkpoint, by the features of its template and, where templates agree, by its
/// family. `model_type` is that of config.json; `chat_template` is the text of chat_template.jinja
/// or of the key in tokenizer_config.json. The template is only searched for known words. Errors:
/// Unsupported for a template that matches no known one and for none at all; both say to use
/// --chat-format.
Result<const ChatFormat*> choose_chat_format(std::string_view model_type,
                                             std::string_view chat_template);

/// The same, with the template taken from tokenizer_config.json (a string, or a list of named ones,
/// of which "default" counts).
Result<const ChatFormat*> choose_chat_format(std::string_view model_type,
                                             const Json& tokenizer_config);

/// The same for a directory: chat_template.jinja if it is there, else the tokenizer_config.json
/// that its tokenizer has read. Errors: also those of reading.
Result<const ChatFormat*> choose_chat_format_of_directory(std::string_view model_type,
                                                          const std::string& dir,
                                                          const Json& tokenizer_config);

}  // namespace fathom
