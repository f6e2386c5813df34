// The prompt format of a model and conversations from files.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/tokenizer/chat/chat.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom::cli {

/// Refuses a name that no format has, before a model is opened; an empty one is none. Errors:
/// InvalidArgument, listing the names.
Status check_chat_format(const std::string& name);

/// The format named by --chat-format, or with an empty name the one of the model's family and
/// template.
Result<const ChatFormat*> chat_format_of_model(std::string_view model_type,
                                               const std::string& directory,
                                               const Tokenizer& tokenizer,
                                               const std::string& name);

/// What the flags about prompts say.
struct ChatFlags {
  std::string chat_format;
  std::string thinking = "default";
  std::string effort = "default";
  bool keep_reasoning = false;
};

/// The options of `flags`, for CLI11 to set and, with `needed`, to refuse without that one.
void add_chat_flags(CLI::App& app, ChatFlags& flags, CLI::Option* needed = nullptr);

/// The same for a format. Errors: InvalidArgument for an effort that is not known.
Result<ChatOptions> chat_options(const ChatFlags& flags);

/// model_type of config.json; empty without that file. Errors: Io, Corrupt.
Result<std::string> model_type_of(const std::string& directory);

/// What the member "schema" of a conversation's file says, where it has one.
inline constexpr std::string_view kConversationSchema = "fathom.chat/1";

/// {"messages": [...], "tools": [...], "response_format": {...}}, or the list of messages alone.
/// Errors: those of read_text; Corrupt for what is no conversation, and for a schema of another
/// version.
Result<ChatConversation> read_conversation(const std::string& path, const ChatReading& reading);

}  // namespace fathom::cli
