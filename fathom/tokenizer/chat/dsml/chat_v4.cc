// DeepSeek-V4: the preview and the release of July 31, which differ in effort.h alone.
//
//   BOS [effort] system [tools] [response format] <｜User｜>u<｜Assistant｜><think>r</think>a EOS
//   ...
//
// Users and results of tools in a row are one turn (merged_turns.h), its parts joined by an empty
// line; a result is <tool_result>R</tool_result>. System messages stand where they are. The header
// of the assistant's turn ends the turn of a user or developer whose next turn is the assistant's
// or a reminder, or that is the last one; its <think> or </think> says whether reasoning follows:
//
//   thinking off                        </think>, and no reasoning
//   on, reasoning of the past is kept   <think>, and reasoning</think> in each turn
//   on, it is dropped                   so from the last turn of a user on; before it as if off,
//                                       and turns of developers are left out
//
// Tools keep the reasoning of the whole conversation. A task takes the place of the header: its
// token, or for the action header and token; what answers a task has no reasoning.
//
// Departures from the published encoder, which prints no prompt for an answer there: a conversation
// that ends with a system message, a finished turn of the assistant or a reminder gets its header;
// a turn of the assistant to be continued that has no content yet goes on within its reasoning.
//
// Source: encoding/encoding_dsv4.py of the checkpoints; text of JSON mode and defaults from the
// official recipe, deepseek-recipe 0.2.0.
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/control_tokens.h"
#include "fathom/tokenizer/chat/dsml/dsml_text.h"
#include "fathom/tokenizer/chat/dsml/effort.h"
#include "fathom/tokenizer/chat/dsml/merged_turns.h"

namespace fathom {
namespace {

constexpr std::string_view kSection = "tool_calls";

std::string_view task_token(ChatTask task) {
  switch (task) {
    case ChatTask::kNone:
      return "";
    case ChatTask::kAction:
      return control::kAction;
    case ChatTask::kQuery:
      return control::kQuery;
    case ChatTask::kAuthority:
      return control::kAuthority;
    case ChatTask::kDomain:
      return control::kDomain;
    case ChatTask::kTitle:
      return control::kTitle;
    case ChatTask::kReadUrl:
      return control::kReadUrl;
  }
  return "";
}

bool is_user(ChatRole role) {
  return role == ChatRole::kUser || role == ChatRole::kDeveloper;
}

void append_tools(PromptText& prompt, const std::vector<ToolDefinition>& tools, ToolSchema style) {
  prompt.marked(
      "\n\n## Tools\n\n"
      "You have access to a set of tools to help answer the user's question. You can invoke tools "
      "by writing a \"<｜DSML｜tool_calls>\" block like the following:\n\n"
      "<｜DSML｜tool_calls>\n"
      "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
      "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
      "</｜DSML｜parameter>\n"
      "...\n"
      "</｜DSML｜invoke>\n"
      "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
      "...\n"
      "</｜DSML｜invoke>\n"
      "</｜DSML｜tool_calls>\n\n"
      "String parameters should be specified as is and set `string=\"true\"`. For all other types "
      "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
      "`string=\"false\"`.\n\n"
      "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
      "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
      "Otherwise, output directly after </think> with tool calls or final response.\n\n"
      "### Available Tool Schemas\n\n");
  append_tool_schemas(prompt, tools, style);
  prompt.text(
      "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke "
      "tool calls.\n");
}

void append_response_format(PromptText& prompt, const ResponseFormat& format) {
  switch (format.kind) {
    case ResponseFormat::Kind::kText:
      return;
    case ResponseFormat::Kind::kJsonObject:
      prompt.text(
          "\n\nYou are a helpful assistant designed to output JSON.\n"
          "## Response Format:\n\nReply with JSON object ONLY.");
      return;
    case ResponseFormat::Kind::kJsonSchema:
      append_response_schema(prompt, format.schema);
      return;
  }
}

// One prompt in the making.
class Rendering {
 public:
  Rendering(const std::vector<ChatMessage>& messages, const ChatOptions& options, bool thinking)
      : options_(options), thinking_(thinking), turns_(merge_turns(messages)) {
    bool has_tools = false;
    for (const ChatMessage& message : messages)
      has_tools = has_tools || !message.tools.empty();
    drops_ = thinking && !has_tools && options.past_reasoning == PastReasoning::kDrop;
    if (drops_) drop_developers();
    last_user_ = last_user_turn(turns_);
  }

  PromptText render(EffortText effort) && {
    prompt_.control(control::kBos);
    if (thinking_) prompt_.text(effort_prefix(effort));
    for (size_t i = 0; i < turns_.size(); ++i) {
      append_turn(i);
      append_transition(i);
    }
    const bool adds = options_.generation_prompt == GenerationPrompt::kAdd;
    if (adds && !has_header_) append_header(thinking_);
    return std::move(prompt_);
  }

 private:
  // Those before the last turn of a user.
  void drop_developers() {
    const int64_t last = last_user_turn(turns_);
    int64_t i = 0;
    std::erase_if(turns_, [&](const MergedTurn& turn) {
      return i++ < last && turn.role == ChatRole::kDeveloper;
    });
  }

  void append_turn(size_t i) {
    const MergedTurn& turn = turns_[i];
    const ChatMessage& message = *turn.message;
    switch (turn.role) {
      case ChatRole::kDeveloper:
        prompt_.control(control::kUser);
        [[fallthrough]];
      case ChatRole::kSystem:
        prompt_.text(message.content);
        if (!message.tools.empty()) append_tools(prompt_, message.tools, options_.tool_schema);
        append_response_format(prompt_, message.response_format);
        break;
      case ChatRole::kUser:
      case ChatRole::kTool:
        prompt_.control(control::kUser);
        append_blocks(turn.blocks);
        break;
      case ChatRole::kLatestReminder:
        prompt_.control(control::kLatestReminder).text(message.content);
        return;
      case ChatRole::kAssistant:
        append_assistant(i);
        return;
    }
    has_header_ = false;
  }

  void append_blocks(const std::vector<TurnBlock>& blocks) {
    for (const TurnBlock& block : blocks) {
      if (&block != blocks.data()) prompt_.text("\n\n");
      const bool is_result = block.kind == TurnBlock::Kind::kToolResult;
      if (is_result) prompt_.text("<tool_result>");
      prompt_.text(block.text);
      if (is_result) prompt_.text("</tool_result>");
    }
  }

  void append_assistant(size_t i) {
    const ChatMessage& message = *turns_[i].message;
    const bool answers_task = i > 0 && turns_[i - 1].task != ChatTask::kNone;
    const bool is_open = message.end == TurnEnd::kContinue;
    if (thinking_ && !answers_task && has_reasoning(i, 1)) {
      prompt_.text(message.reasoning_content);
      if (!is_open || !message.content.empty()) prompt_.control(control::kEndThink);
    }
    prompt_.text(message.content);
    append_dsml_calls(prompt_, message, kSection);
    if (!is_open) prompt_.control(control::kEos);
    has_header_ = is_open;
  }

  // Whether turns from `distance` after the last user's on, or all, are thought about.
  bool has_reasoning(size_t i, int64_t distance) const {
    return !drops_ || static_cast<int64_t>(i) >= last_user_ + distance;
  }

  void append_transition(size_t i) {
    const MergedTurn& turn = turns_[i];
    const bool is_last = i + 1 == turns_.size();
    if (is_last && options_.generation_prompt == GenerationPrompt::kNone) return;
    if (!is_last) {
      const ChatRole next = turns_[i + 1].role;
      if (next != ChatRole::kAssistant && next != ChatRole::kLatestReminder) return;
    }
    if (turn.task == ChatTask::kAction) append_header(thinking_);
    if (turn.task != ChatTask::kNone) {
      prompt_.control(task_token(turn.task));
      has_header_ = true;
    } else if (is_user(turn.role)) {
      append_header(thinking_ && has_reasoning(i, 0));
    }
  }

  void append_header(bool thinking) {
    prompt_.control(control::kAssistant);
    prompt_.control(thinking ? control::kThink : control::kEndThink);
    has_header_ = true;
  }

  const ChatOptions& options_;
  bool thinking_;
  bool drops_ = false;
  std::vector<MergedTurn> turns_;
  int64_t last_user_ = -1;
  PromptText prompt_;
  bool has_header_ = false;  // whether an answer may follow
};

class ChatV4 final : public ChatFormat {
 public:
  explicit ChatV4(V4Release release) : release_(release) {}

  std::string_view name() const override {
    return release_ == V4Release::kPreview ? "v4" : "v4-0731";
  }

  AnswerGrammar answer_grammar(const ChatOptions& options) const override {
    return {.tool_calls = AnswerGrammar::ToolCalls::kDsml,
            .knows_thinking = true,
            .starts_in_reasoning = thinks(options, Thinking::kOn),
            .section = kSection};
  }

  AnswerGrammar answer_grammar_after(const ChatConversation& conversation,
                                     const ChatOptions& options) const override {
    AnswerGrammar grammar = answer_grammar(options);
    if (conversation.messages.empty()) return grammar;
    const ChatMessage& last = conversation.messages.back();
    const std::vector<MergedTurn> turns = merge_turns(conversation.messages);
    const ChatTask task = turns.back().task;
    if (last.end == TurnEnd::kContinue) {
      const bool answers_task = turns.size() > 1 && turns[turns.size() - 2].task != ChatTask::kNone;
      grammar.starts_in_reasoning =
          grammar.starts_in_reasoning && !answers_task && last.content.empty();
      grammar.continues_turn = !last.content.empty() || !last.reasoning_content.empty();
    } else if (task != ChatTask::kNone && task != ChatTask::kAction) {
      grammar.starts_in_reasoning = false;
    }
    return grammar;
  }

  ChatFeatures features() const override {
    return {.reminders = true, .tasks = true, .message_tools = true};
  }

  ChatReading reading() const override {
    return {.part_separator = "\n\n", .other_parts_of_results = ChatReading::OtherParts::kNamed};
  }

 protected:
  Result<PromptText> render(const ChatConversation& conversation,
                            const ChatOptions& options) const override {
    const std::vector<ChatMessage> messages = with_first_system_message(conversation);
    return Rendering{messages, options, thinks(options, Thinking::kOn)}.render(
        effort_text(release_, options.effort));
  }

 private:
  V4Release release_;
};

}  // namespace

const ChatFormat& chat_v4() {
  static const ChatV4 format{V4Release::kPreview};
  return format;
}

const ChatFormat& chat_v4_0731() {
  static const ChatV4 format{V4Release::k0731};
  return format;
}

}  // namespace fathom
