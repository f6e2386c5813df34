#include "cli/chat/chat_history.h"

#include <algorithm>
#include <utility>

namespace fathom::cli {
namespace {

// An answer that is cut after a few words is worth less than the turn that left it no room.
constexpr int64_t kAnswerShare = 4;

bool is_turn(const ChatMessage& message) {
  return message.role != ChatRole::kSystem;
}

bool is_question(const ChatMessage& message) {
  return message.role == ChatRole::kUser;
}

// Drops the oldest message of a user and what follows up to the next one. 0 where that is the last.
int64_t drop_oldest_turn(std::vector<ChatMessage>& messages) {
  const auto first = std::find_if(messages.begin(), messages.end(), is_turn);
  if (first == messages.end()) return 0;
  const auto next = std::find_if(first + 1, messages.end(), is_question);
  if (next == messages.end()) return 0;
  // System messages that were said in between stay.
  const auto end = std::stable_partition(first, next, [](const auto& m) { return !is_turn(m); });
  const auto dropped = static_cast<int64_t>(next - end);
  messages.erase(end, next);
  return dropped;
}

// The last message of a user, or the end.
auto last_question_of(const std::vector<ChatMessage>& messages) {
  const auto found = std::find_if(messages.rbegin(), messages.rend(), is_question);
  return found == messages.rend() ? messages.end() : found.base() - 1;
}

}  // namespace

void ChatHistory::add(const ChatMessage& message) {
  whole.messages.push_back(message);
  seen.messages.push_back(message);
}

const ChatMessage* ChatHistory::last_question() const {
  const auto found = last_question_of(seen.messages);
  return found == seen.messages.end() ? nullptr : &*found;
}

void ChatHistory::drop_answer(Question question) {
  for (ChatConversation* conversation : {&whole, &seen}) {
    auto& messages = conversation->messages;
    auto first = last_question_of(messages);
    if (first == messages.end()) continue;
    if (question == Question::kKeep) ++first;
    messages.erase(first, messages.end());
  }
}

Result<FittedPrompt> fit_prompt(ChatConversation& conversation,
                                const ChatFormat& format,
                                const ChatOptions& options,
                                const Tokenizer& tokenizer,
                                const ChatRoom& room) {
  ChatConversation kept = conversation;
  FittedPrompt out;
  const int64_t least = room.answer.value_or(1);
  const int64_t wanted = room.answer.value_or(std::max<int64_t>(1, room.context / kAnswerShare));
  for (;;) {
    FATHOM_ASSIGN(const PromptText prompt, format.format(kept, options));
    out.ids = prompt.encode(tokenizer);
    const auto length = static_cast<int64_t>(out.ids.size());
    if (length + wanted <= room.context) break;
    const int64_t dropped = drop_oldest_turn(kept.messages);
    out.forgotten += dropped;
    if (dropped > 0) continue;
    if (length + least <= room.context) break;
    return invalid_argument(
        str_cat("the last message and the system message take ", length, " tokens and the answer ",
                room.answer ? str_cat(least, " (--max-tokens)") : std::string("at least 1"),
                ", but the context holds ", room.context,
                "\nhint: shorten the message, or raise --max-model-len where the model allows it"));
  }
  conversation = std::move(kept);
  return out;
}

}  // namespace fathom::cli
