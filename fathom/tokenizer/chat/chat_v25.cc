// DeepSeek-V2.5. Turns as in control_turns.h; the block of tools is that of the model card.
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/control_turns.h"

namespace fathom {
namespace {

void append_tools(PromptText& prompt, const std::vector<ToolDefinition>& tools) {
  prompt.text("\n\n## Tools\n\n### Function\n\nYou have the following functions available:\n");
  for (const ToolDefinition& tool : tools) {
    const Json* function = tool.definition.find("function");
    const Json& printed = function != nullptr ? *function : tool.definition;
    prompt.text("\n- `").text(tool.name).text("`:\n```json\n");
    prompt.text(dump_json(printed, JsonStyle::kIndented4)).text("\n```");
  }
}

class ChatV25 final : public ChatFormat {
 public:
  std::string_view name() const override { return "v2.5"; }

  AnswerGrammar answer_grammar(const ChatOptions&) const override {
    return {.tool_calls = AnswerGrammar::ToolCalls::kFencedJson};
  }

 protected:
  Result<PromptText> render(const ChatConversation& conversation,
                            const ChatOptions& options) const override {
    // The model does not think; a request for it changes nothing.
    ChatOptions plain = options;
    plain.thinking = Thinking::kOff;
    return render_control_turns(conversation, plain, {.append_tools = append_tools});
  }
};

}  // namespace

const ChatFormat& chat_v25() {
  static const ChatV25 format;
  return format;
}

}  // namespace fathom
