// Who answers in a chat: an engine of this process, or a server.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/chat/answer_printer.h"
#include "cli/chat/chat_settings.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom::cli {

struct ChatAnswer {
  ChatMessage turn{};
  int64_t tokens = 0;
  double tokens_per_s = 0;  ///< after the first token; 0: not known
  std::string finish{};     ///< "stop", "length", ...
  std::string figures{};    ///< what /stats prints
};

struct ChatTokens {
  int64_t conversation = 0;
  std::optional<int64_t> context{};  ///< that conversation and answer share, where it is known
};

class ChatModel {
 public:
  virtual ~ChatModel() = default;

  /// As it was named.
  virtual std::string name() const = 0;

  /// How messages of files are to be read for it.
  virtual ChatReading reading() const = 0;

  /// What it asks for itself where settings say nothing, as far as that is known.
  virtual NamedValues own_settings() const = 0;

  /// Errors: InvalidArgument for settings that no answer can be given with.
  virtual Status check(const ChatSettings& settings) const = 0;

  /// Answers the conversation, whose oldest turns are dropped from `seen` where they do not fit.
  /// The answer is printed as it comes; Ctrl-C ends it.
  virtual Result<ChatAnswer> answer(ChatConversation& seen, const ChatSettings& settings) = 0;

  /// The tokens of a conversation. Errors: those of its format; Unavailable where nobody counts.
  virtual Result<ChatTokens> count(const ChatConversation& seen,
                                   const ChatSettings& settings) const = 0;

  /// Whether a chat goes on after an answer that could not be given, though nobody types: what a
  /// server refuses now it may take later.
  virtual bool may_recover() const = 0;
};

}  // namespace fathom::cli
