// DeepSeek-V2 and V2-Lite: plain text without control tokens inside.
//
//   BOS system\n\n User: u\n\n Assistant: a EOS User: u\n\n Assistant:
//
// (blanks between the parts only for legibility). Source: chat_template of DeepSeek-V2-Chat.
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

class ChatV2 final : public ChatFormat {
 public:
  std::string_view name() const override { return "v2"; }

  AnswerGrammar answer_grammar(const ChatOptions&) const override { return {}; }

 protected:
  Result<PromptText> render(const ChatConversation& conversation,
                            const ChatOptions& options) const override {
    if (!conversation.tools.empty()) {
      return invalid_argument("tools is set, but the chat format v2 has no tools");
    }
    PromptText prompt;
    prompt.control(control::kBos);
    const auto& messages = conversation.messages;
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      switch (message.role) {
        case ChatRole::kSystem:
        case ChatRole::kDeveloper:
          prompt.text(message.content).text("\n\n");
          break;
        case ChatRole::kUser:
          prompt.text("User: ").text(message.content).text("\n\n");
          break;
        case ChatRole::kAssistant:
          if (!message.tool_calls.empty()) {
            return invalid_argument(str_cat(
                "messages[", i, "].tool_calls is set, but the chat format v2 has no tools"));
          }
          prompt.text("Assistant: ").text(message.content);
          if (message.end == TurnEnd::kContinue) return prompt;
          prompt.control(control::kEos);
          break;
        case ChatRole::kTool:
          return invalid_argument(
              str_cat("messages[", i, "].role is tool, but the chat format v2 has no tools"));
        case ChatRole::kLatestReminder:
          break;  // refused before
      }
    }
    if (options.generation_prompt == GenerationPrompt::kAdd) prompt.text("Assistant:");
    return prompt;
  }
};

}  // namespace

const ChatFormat& chat_v2() {
  static const ChatV2 format;
  return format;
}

}  // namespace fathom
