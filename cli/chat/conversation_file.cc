#include "cli/chat/conversation_file.h"

#include "cli/io/chat_input.h"
#include "fathom/os/atomic_file.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {

std::string conversation_json(const ChatConversation& conversation, std::string_view model) {
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object().key("schema").string(kConversationSchema).key("model").string(model);
  out.key("messages").begin_array();
  for (const ChatMessage& message : conversation.messages) {
    out.begin_object().key("role").string(chat_role_name(message.role));
    if (!message.reasoning_content.empty()) {
      out.key("reasoning_content").string(message.reasoning_content);
    }
    out.key("content").string(message.content).end_object();
  }
  out.end_array().end_object();
  return out.take() + "\n";
}

Status save_conversation(const std::string& path,
                         const ChatConversation& conversation,
                         std::string_view model) {
  return write_file(path, conversation_json(conversation, model));
}

Result<ChatConversation> load_conversation(const std::string& path, const ChatReading& reading) {
  FATHOM_ASSIGN(ChatConversation chat, read_conversation(path, reading));
  if (chat.messages.empty()) return corrupt(str_cat(path, ": messages is empty"));
  if (!chat.tools.empty()) return corrupt(str_cat(path, ": has tools, and a chat offers none"));
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    ChatMessage& message = chat.messages[i];
    const bool told = message.role == ChatRole::kSystem || message.role == ChatRole::kUser ||
                      message.role == ChatRole::kAssistant;
    if (!told || !message.tool_calls.empty()) {
      return corrupt(str_cat(path, ": messages[", i, "] is ",
                             told ? "a call of tools" : chat_role_name(message.role),
                             ", and a chat has system, user and assistant only"));
    }
    message.end = TurnEnd::kComplete;
  }
  return chat;
}

}  // namespace fathom::cli
