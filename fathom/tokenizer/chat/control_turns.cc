#include "fathom/tokenizer/chat/control_turns.h"

#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

void append_tool_calls(PromptText& prompt, const ChatMessage& message) {
  if (message.tool_calls.empty()) return;
  if (!message.sampled_calls.ids.empty()) {
    prompt.sampled(message.sampled_calls);
    return;
  }
  prompt.control(control::kToolCallsBegin);
  bool is_first = true;
  for (const ToolCall& call : message.tool_calls) {
    if (!is_first) prompt.text("\n");
    is_first = false;
    prompt.control(control::kToolCallBegin).text("function").control(control::kToolSep);
    prompt.text(call.name).text("\n```json\n").text(call.arguments).text("\n```");
    prompt.control(control::kToolCallEnd);
  }
  prompt.control(control::kToolCallsEnd);
}

std::string_view after_reasoning(std::string_view content) {
  const size_t end = content.rfind(control::kEndThink);
  return end == content.npos ? content : content.substr(end + control::kEndThink.size());
}

// A turn that the model shall continue may have begun to think.
void append_open_turn(PromptText& prompt, const ChatMessage& message) {
  if (!message.reasoning_content.empty()) {
    prompt.control(control::kThink).text("\n").text(message.reasoning_content);
    if (message.content.empty()) return;
    prompt.text("\n").control(control::kEndThink).text("\n\n");
  }
  prompt.text(message.content);
}

}  // namespace

bool opens_thinking(const ControlTurnStyle& style, const ChatOptions& options) {
  switch (options.thinking) {
    case Thinking::kFormatDefault:
      return style.thinks_by_default;
    case Thinking::kOff:
      return false;
    case Thinking::kOn:
      return true;
  }
  return false;
}

PromptText render_control_turns(const ChatConversation& conversation,
                                const ChatOptions& options,
                                const ControlTurnStyle& style) {
  PromptText prompt;
  prompt.control(control::kBos).text(joined_system_text(conversation));
  if (!conversation.tools.empty()) style.append_tools(prompt, conversation.tools);

  bool in_outputs = false;
  const auto close_outputs = [&] {
    if (in_outputs) prompt.control(control::kToolOutputsEnd);
    in_outputs = false;
  };
  bool needs_header = true;  // whether the next turn of the assistant begins with its token
  for (const ChatMessage& message : conversation.messages) {
    switch (message.role) {
      case ChatRole::kSystem:
      case ChatRole::kDeveloper:
      case ChatRole::kLatestReminder:  // refused before
        break;
      case ChatRole::kUser:
        close_outputs();
        prompt.control(control::kUser).text(message.content);
        needs_header = true;
        break;
      case ChatRole::kAssistant:
        close_outputs();
        if (needs_header) prompt.control(control::kAssistant);
        needs_header = true;
        if (message.end == TurnEnd::kContinue) {
          append_open_turn(prompt, message);
          return prompt;
        }
        prompt.text(style.history == ControlTurnStyle::History::kAfterReasoning
                        ? after_reasoning(message.content)
                        : std::string_view{message.content});
        append_tool_calls(prompt, message);
        prompt.control(control::kEos);
        break;
      case ChatRole::kTool:
        if (in_outputs) {
          prompt.text("\n");
        } else {
          prompt.control(control::kToolOutputsBegin);
        }
        prompt.control(control::kToolOutputBegin).text(message.content);
        prompt.control(control::kToolOutputEnd);
        in_outputs = true;
        needs_header = false;
        break;
    }
  }
  close_outputs();
  if (options.generation_prompt == GenerationPrompt::kAdd && needs_header) {
    prompt.control(control::kAssistant);
    if (opens_thinking(style, options)) prompt.control(control::kThink).text("\n");
  }
  return prompt;
}

}  // namespace fathom
