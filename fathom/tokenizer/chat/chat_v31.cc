// DeepSeek-V3.1, V3.1-Terminus and V3.2-Exp: one model that thinks or not, by the end of the
// prompt.
//
//   BOS system [tools] <｜User｜>u <｜Assistant｜></think>a EOS ... <｜User｜>u
//   <｜Assistant｜><think>
//
// A turn of the past always carries </think>, and of its content only what follows its own first
// one. Calls stand side by side, without separators or fences:
//
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGS<｜tool▁call▁end｜><｜tool▁calls▁end｜>
//   EOS <｜tool▁output▁begin｜>R<｜tool▁output▁end｜>
//
// Source: model card and chat_template of DeepSeek-V3.1.
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

void append_tools(PromptText& prompt, const std::vector<ToolDefinition>& tools) {
  prompt.text("\n\n## Tools\nYou have access to the following tools:\n");
  for (const ToolDefinition& tool : tools) {
    prompt.text("\n### ").text(tool.name).text("\nDescription: ").text(tool.description);
    prompt.text("\n\nParameters: ");
    prompt.text(tool.parameters.is_null() ? "{}" : dump_json_like_python(tool.parameters));
    prompt.text("\n");
  }
  // The double braces are part of the text.
  prompt.marked(
      "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
      "<｜tool▁call▁end｜>{{additional_tool_calls}}<｜tool▁calls▁end｜>\n\nWhere:\n\n"
      "- `tool_call_name` must be an exact match to one of the available tools\n"
      "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "
      "Schema\n"
      "- For multiple tool calls, chain them directly without separators or spaces\n");
}

void append_tool_calls(PromptText& prompt, const ChatMessage& message) {
  if (message.tool_calls.empty()) return;
  if (!message.sampled_calls.ids.empty()) {
    prompt.sampled(message.sampled_calls);
    return;
  }
  prompt.control(control::kToolCallsBegin);
  for (const ToolCall& call : message.tool_calls) {
    prompt.control(control::kToolCallBegin).text(call.name).control(control::kToolSep);
    prompt.text(call.arguments).control(control::kToolCallEnd);
  }
  prompt.control(control::kToolCallsEnd);
}

std::string_view after_reasoning(std::string_view content) {
  const size_t end = content.find(control::kEndThink);
  return end == content.npos ? content : content.substr(end + control::kEndThink.size());
}

// A turn that the model shall continue: within its thoughts or within its answer.
void append_open_turn(PromptText& prompt,
                      const ChatMessage& message,
                      bool has_header,
                      bool thinks) {
  const bool is_thinking = thinks || !message.reasoning_content.empty();
  if (has_header) prompt.control(is_thinking ? control::kThink : control::kEndThink);
  if (!message.reasoning_content.empty()) {
    prompt.text(message.reasoning_content);
    if (!message.content.empty()) prompt.control(control::kEndThink);
  }
  prompt.text(message.content);
}

class ChatV31 final : public ChatFormat {
 public:
  std::string_view name() const override { return "v3.1"; }

  AnswerGrammar answer_grammar(const ChatOptions& options) const override {
    return {.tool_calls = AnswerGrammar::ToolCalls::kBareJson,
            .knows_thinking = true,
            .starts_in_reasoning = options.thinking == Thinking::kOn};
  }

 protected:
  Result<PromptText> render(const ChatConversation& conversation,
                            const ChatOptions& options) const override {
    const bool thinks = options.thinking == Thinking::kOn;
    PromptText prompt;
    prompt.control(control::kBos).text(joined_system_text(conversation));
    if (!conversation.tools.empty()) append_tools(prompt, conversation.tools);

    bool after_user = false;  // only then the assistant's turn begins with a header
    for (const ChatMessage& message : conversation.messages) {
      switch (message.role) {
        case ChatRole::kSystem:
        case ChatRole::kDeveloper:
        case ChatRole::kLatestReminder:  // refused before
          break;
        case ChatRole::kUser:
          prompt.control(control::kUser).text(message.content);
          after_user = true;
          break;
        case ChatRole::kAssistant:
          if (after_user) prompt.control(control::kAssistant);
          if (message.end == TurnEnd::kContinue) {
            append_open_turn(prompt, message, after_user, thinks);
            return prompt;
          }
          if (after_user) prompt.control(control::kEndThink);
          after_user = false;
          prompt.text(after_reasoning(message.content));
          append_tool_calls(prompt, message);
          prompt.control(control::kEos);
          break;
        case ChatRole::kTool:
          prompt.control(control::kToolOutputBegin).text(message.content);
          prompt.control(control::kToolOutputEnd);
          after_user = false;
          break;
      }
    }
    if (options.generation_prompt == GenerationPrompt::kAdd && after_user) {
      prompt.control(control::kAssistant).control(thinks ? control::kThink : control::kEndThink);
    }
    return prompt;
  }
};

}  // namespace

const ChatFormat& chat_v31() {
  static const ChatV31 format;
  return format;
}

}  // namespace fathom
