// DeepSeek-V3 and DeepSeek-R1. Turns as in control_turns.h.
//
// The checkpoints' templates have no place for tool descriptions; the block is the one that the
// sglang project uses for them (examples/chat_template/tool_chat_template_deepseekv3.jinja), so
// that both engines show a model the same text.
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/control_turns.h"

namespace fathom {
namespace {

void append_tools(PromptText& prompt, const std::vector<ToolDefinition>& tools) {
  prompt.marked(
      "\n\nYou are a helpful assistant with tool calling capabilities. "
      "When a tool call is needed, you MUST use the following format to issue the call:\n"
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>FUNCTION_NAME\n"
      "```json\n{\"param1\": \"value1\", \"param2\": \"value2\"}\n```"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\n"
      "Make sure the JSON is valid."
      "## Tools\n\n### Function\n\nYou have the following functions available:\n\n");
  for (const ToolDefinition& tool : tools) {
    prompt.text("\n```json\n").text(dump_json_like_python(tool.definition)).text("\n```\n");
  }
}

class ChatV3 final : public ChatFormat {
 public:
  // V3 answers at once and thinks on request; R1 always thinks, and forgets its old thoughts.
  enum class Model { kV3, kR1 };

  explicit ChatV3(Model model)
      : model_(model),
        style_{.append_tools = append_tools,
               .history = model == Model::kR1 ? ControlTurnStyle::History::kAfterReasoning
                                              : ControlTurnStyle::History::kWhole,
               .thinks_by_default = model == Model::kR1} {}

  std::string_view name() const override { return model_ == Model::kR1 ? "r1" : "v3"; }

  AnswerGrammar answer_grammar(const ChatOptions& options) const override {
    // R1 opens its thoughts itself where the prompt does not.
    return {.tool_calls = AnswerGrammar::ToolCalls::kFencedJson,
            .knows_thinking = true,
            .starts_in_reasoning = model_ == Model::kR1 || opens_thinking(style_, options)};
  }

 protected:
  Result<PromptText> render(const ChatConversation& conversation,
                            const ChatOptions& options) const override {
    return render_control_turns(conversation, options, style_);
  }

 private:
  Model model_;
  ControlTurnStyle style_;
};

}  // namespace

const ChatFormat& chat_v3() {
  static const ChatV3 format{ChatV3::Model::kV3};
  return format;
}

const ChatFormat& chat_r1() {
  static const ChatV3 format{ChatV3::Model::kR1};
  return format;
}

}  // namespace fathom
