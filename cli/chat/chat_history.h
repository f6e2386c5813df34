// A conversation, and what of it fits the context of its model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom::cli {

/// A conversation as it was had, and as its model still knows it: without the oldest turns where
/// they no longer fit. Both end with the same messages, from the last one of the user on.
struct ChatHistory {
  ChatConversation whole{};
  ChatConversation seen{};

  void add(const ChatMessage& message);

  /// The last message of the user; null before there is one.
  const ChatMessage* last_question() const;

  /// Takes what answered it away, and with kToo the question itself.
  enum class Question { kKeep, kToo };
  void drop_answer(Question question);
};

/// Tokens that a prompt and its answer share.
struct ChatRoom {
  int64_t context = 0;
  std::optional<int64_t> answer;  ///< --max-tokens: that much is kept for it
};

struct FittedPrompt {
  std::vector<int32_t> ids;
  int64_t forgotten = 0;  ///< messages that were dropped for it
};

/// The prompt of the conversation. Where it leaves too little room for an answer, the oldest turns
/// are dropped from `conversation`, each message of a user with what answered it; system messages
/// and the last turn stay. Without a number of tokens in `room` an answer has a quarter of the
/// context while there are turns to drop. Errors: those of ChatFormat::format; InvalidArgument with
/// the numbers where what must stay does not fit, and nothing is dropped then.
Result<FittedPrompt> fit_prompt(ChatConversation& conversation,
                                const ChatFormat& format,
                                const ChatOptions& options,
                                const Tokenizer& tokenizer,
                                const ChatRoom& room);

}  // namespace fathom::cli
