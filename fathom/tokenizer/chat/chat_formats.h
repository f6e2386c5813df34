// The chat formats by name, and which one a checkpoint needs.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

const ChatFormat& chat_v2();       ///< "User: ", "Assistant:": DeepSeek-V2, V2-Lite
const ChatFormat& chat_v25();      ///< control tokens: DeepSeek-V2.5
const ChatFormat& chat_v3();       ///< DeepSeek-V3
const ChatFormat& chat_r1();       ///< V3 that thinks first: DeepSeek-R1
const ChatFormat& chat_v31();      ///< thinking by switch: DeepSeek-V3.1, V3.1-Terminus, V3.2-Exp
const ChatFormat& chat_v32();      ///< DSML, thinking by switch: DeepSeek-V3.2
const ChatFormat& chat_v4();       ///< DSML, thinking unless told not to: DeepSeek-V4, preview
const ChatFormat& chat_v4_0731();  ///< the same with more efforts: DeepSeek-V4 of July 31

/// All formats.
std::span<const ChatFormat* const> chat_formats();

/// Their names in a row: "v2, v2.5, ...".
std::string chat_format_names();

/// The format of `--chat-format NAME`. Errors: InvalidArgument, listing the names.
Result<const ChatFormat*> find_chat_format(std::string_view name);

/// What a checkpoint says of its prompts. Templates and encoders are only searched for known words,
/// never run.
struct ChatEvidence {
  std::string_view model_type{};     ///< of config.json
  std::string_view chat_template{};  ///< chat_template.jinja, or the key of tokenizer_config.json
  std::string_view encoder{};        ///< encoding/encoding_dsv4.py or encoding_dsv32.py
  bool has_dspark = false;           ///< whether config.json has keys that begin with dspark_
};

/// The format of a checkpoint: by its encoder; else by the features of its template and, where
/// templates agree or have no known features, by its family. V3.2 and V4 have no template of their
/// own (one of plain turns, without </think>, is V3's, whatever the family); the releases of V4 are
/// told apart by the words for the effort in the encoder, else by the keys of the drafter. Errors:
/// Unsupported for what matches no known one and for nothing at all; both say to use --chat-format.
Result<const ChatFormat*> choose_chat_format(const ChatEvidence& evidence);

/// The same for a directory: with its encoding/encoding_dsv*.py, its chat_template.jinja or else
/// the tokenizer_config.json that its tokenizer has read (a template there is a string, or a list
/// of named ones, of which "default" counts), and its config.json. Errors: also those of reading.
Result<const ChatFormat*> choose_chat_format_of_directory(std::string_view model_type,
                                                          const std::string& dir,
                                                          const Json& tokenizer_config);

/// The template that tokenizer_config.json holds; empty if there is none. Errors: Unsupported for
/// one without a text.
Result<std::string> chat_template_of(const Json& tokenizer_config);

}  // namespace fathom
