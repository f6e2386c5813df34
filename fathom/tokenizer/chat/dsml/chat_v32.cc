// DeepSeek-V3.2 (not V3.2-Exp, which speaks as V3.1).
//
//   BOS system [tools] [response format] <｜User｜>u<｜Assistant｜></think>a EOS ...
//   <｜User｜>u<｜Assistant｜><think>r</think>a [calls] EOS
//   \n\n<function_results>\n<result>R1</result>\n<result>R2</result>\n</function_results>\n\n<think>
//
// The header stands at the end of each user's turn, with <think> in the last one when thinking is
// on and </think> before it. Reasoning is written only behind the last turn of a user, so it lives
// as long as a loop of calls; turns of developers before it are left out where thinking drops the
// past. Results close when there are as many as calls.
//
// Departures from the published encoder, which stops there: a finished turn without reasoning is
// one with empty reasoning, arguments that are no JSON object are one string as in V4, and a
// conversation that ends with a turn of the assistant gets a header for the next one.
//
// Source: encoding/encoding_dsv32.py of the checkpoint.
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/control_tokens.h"
#include "fathom/tokenizer/chat/dsml/dsml_text.h"
#include "fathom/tokenizer/chat/dsml/effort.h"

namespace fathom {
namespace {

constexpr std::string_view kSection = "function_calls";

bool is_user(ChatRole role) {
  return role == ChatRole::kUser || role == ChatRole::kDeveloper;
}

void append_tools(PromptText& prompt, const std::vector<ToolDefinition>& tools, ToolSchema style) {
  prompt.marked(
      "\n\n## Tools\n"
      "You have access to a set of tools you can use to answer the user's question.\n"
      "You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the following "
      "as part of your reply to the user:\n"
      "<｜DSML｜function_calls>\n"
      "<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n"
      "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
      "</｜DSML｜parameter>\n"
      "...\n"
      "</｜DSML｜invoke>\n"
      "<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n"
      "...\n"
      "</｜DSML｜invoke>\n"
      "</｜DSML｜function_calls>\n"
      "String and scalar parameters should be specified as is without any escaping or quotes, "
      "while lists and objects should use JSON format. The \"string\" attribute should be set to "
      "\"true\" for string type parameters and \"false\" for other types (numbers, booleans, "
      "arrays, objects).\n"
      "If the thinking_mode is enabled, then after function results you should strongly consider "
      "outputting a thinking block. Here is an example:\n"
      "<｜DSML｜function_calls>\n...\n</｜DSML｜function_calls>\n"
      "<function_results>\n...\n</function_results>\n"
      "<think>...thinking about results</think>\n"
      "Here are the functions available in JSONSchema format:\n<functions>\n");
  append_tool_schemas(prompt, tools, style);
  prompt.text("\n</functions>\n");
}

void append_tools_and_format(PromptText& prompt,
                             const ChatMessage& message,
                             const ChatOptions& options) {
  if (!message.tools.empty()) append_tools(prompt, message.tools, options.tool_schema);
  // JSON without a schema has no words here; it is for the decoder to enforce.
  if (message.response_format.kind == ResponseFormat::Kind::kJsonSchema) {
    append_response_schema(prompt, message.response_format.schema);
  }
}

// The how-manieth result since the last other message it is; 1 for the first.
size_t order_of_result(const std::vector<ChatMessage>& messages, size_t i) {
  size_t order = 1;
  while (order <= i && messages[i - order].role == ChatRole::kTool)
    ++order;
  return order;
}

Status check_results(const std::vector<ChatMessage>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != ChatRole::kTool) continue;
    const size_t order = order_of_result(messages, i);
    const size_t num_calls = order > i ? 0 : messages[i - order].tool_calls.size();
    if (num_calls < order) {
      return invalid_argument(str_cat("messages[", i, "] is result ", order, " of a tool after ",
                                      num_calls,
                                      " tool_calls, but the chat format v3.2 needs a call for each "
                                      "result"));
    }
  }
  return {};
}

// One prompt in the making.
class Rendering {
 public:
  Rendering(std::vector<ChatMessage> messages, const ChatOptions& options, bool thinking)
      : options_(options), thinking_(thinking), messages_(std::move(messages)) {
    find_last_user();
    if (!thinking || options.past_reasoning == PastReasoning::kKeep) return;
    int64_t i = 0;
    std::erase_if(messages_, [&](const ChatMessage& message) {
      return i++ < last_user_ && message.role == ChatRole::kDeveloper;
    });
    find_last_user();
  }

  PromptText render() && {
    prompt_.control(control::kBos);
    for (size_t i = 0; i < messages_.size(); ++i)
      append_message(i);
    if (!has_header_ && adds_prompt()) append_header(thinking_);
    return std::move(prompt_);
  }

 private:
  void find_last_user() {
    last_user_ = -1;
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (is_user(messages_[i].role)) last_user_ = static_cast<int64_t>(i);
    }
  }

  bool adds_prompt() const { return options_.generation_prompt == GenerationPrompt::kAdd; }

  void append_message(size_t i) {
    const ChatMessage& message = messages_[i];
    switch (message.role) {
      case ChatRole::kSystem:
        prompt_.text(message.content);
        append_tools_and_format(prompt_, message, options_);
        return;
      case ChatRole::kDeveloper:
        prompt_.control(control::kUser);
        append_tools_and_format(prompt_, message, options_);
        prompt_.text("\n\n# The user's message is: ").text(message.content);
        return append_end_of_user(i);
      case ChatRole::kUser:
        prompt_.control(control::kUser).text(message.content);
        return append_end_of_user(i);
      case ChatRole::kTool:
        return append_result(i);
      case ChatRole::kAssistant:
        return append_assistant(i);
      case ChatRole::kLatestReminder:
        return;  // refused before
    }
  }

  bool is_last(size_t i) const { return i + 1 == messages_.size(); }

  void append_end_of_user(size_t i) {
    if (is_last(i) && !adds_prompt()) return;
    append_header(thinking_ && static_cast<int64_t>(i) == last_user_);
  }

  void append_header(bool thinking) {
    prompt_.control(control::kAssistant);
    append_think(thinking);
  }

  void append_think(bool thinking) {
    prompt_.control(thinking ? control::kThink : control::kEndThink);
    has_header_ = true;
  }

  void append_assistant(size_t i) {
    const ChatMessage& message = messages_[i];
    const bool is_open = message.end == TurnEnd::kContinue;
    if (thinking_ && static_cast<int64_t>(i) > last_user_) {
      prompt_.text(message.reasoning_content);
      if (!is_open || !message.content.empty()) prompt_.control(control::kEndThink);
    }
    prompt_.text(message.content);
    append_dsml_calls(prompt_, message, kSection);
    if (!is_open) prompt_.control(control::kEos);
    has_header_ = is_open;
  }

  // Until there are as many results as calls nothing else may follow.
  void append_result(size_t i) {
    const size_t order = order_of_result(messages_, i);
    if (order == 1) prompt_.text("\n\n<function_results>");
    prompt_.text("\n<result>").text(messages_[i].content).text("</result>");
    has_header_ = true;
    if (order < messages_[i - order].tool_calls.size()) return;
    prompt_.text("\n</function_results>");
    if (is_last(i) && !adds_prompt()) return;
    prompt_.text("\n\n");
    append_think(thinking_ && static_cast<int64_t>(i) >= last_user_);
  }

  const ChatOptions& options_;
  bool thinking_;
  std::vector<ChatMessage> messages_;
  int64_t last_user_ = -1;
  PromptText prompt_;
  bool has_header_ = false;  // whether an answer may follow
};

class ChatV32 final : public ChatFormat {
 public:
  std::string_view name() const override { return "v3.2"; }

  AnswerGrammar answer_grammar(const ChatOptions& options) const override {
    return {.tool_calls = AnswerGrammar::ToolCalls::kDsml,
            .knows_thinking = true,
            .starts_in_reasoning = thinks(options, Thinking::kOff),
            .section = kSection};
  }

  AnswerGrammar answer_grammar_after(const ChatConversation& conversation,
                                     const ChatOptions& options) const override {
    AnswerGrammar grammar = answer_grammar(options);
    if (conversation.messages.empty()) return grammar;
    const ChatMessage& last = conversation.messages.back();
    if (last.end == TurnEnd::kComplete) return grammar;
    grammar.starts_in_reasoning = grammar.starts_in_reasoning && last.content.empty();
    grammar.continues_turn = !last.content.empty() || !last.reasoning_content.empty();
    return grammar;
  }

  ChatFeatures features() const override { return {.message_tools = true}; }

  ChatReading reading() const override { return {.part_separator = "\n\n"}; }

 protected:
  Result<PromptText> render(const ChatConversation& conversation,
                            const ChatOptions& options) const override {
    FATHOM_TRY(check_results(conversation.messages));
    return Rendering{with_first_system_message(conversation), options,
                     thinks(options, Thinking::kOff)}
        .render();
  }
};

}  // namespace

const ChatFormat& chat_v32() {
  static const ChatV32 format;
  return format;
}

}  // namespace fathom
