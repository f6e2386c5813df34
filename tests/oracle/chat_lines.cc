// Prompts and answers of fathom for a test that compares them with another program: one JSON object
// a line in, one a line out.
//
//   {"format": "v4-0731", "messages": [...], "tools": [...], "response_format": {...},
//    "thinking": "default", "effort": "high", "keep_reasoning": false, "raw_schema": false,
//    "service": false, "add_generation_prompt": true}   all but the first two may be absent
//     -> {"prompt": "...", "control": [[begin, end], ...]}   in bytes
//   {"format": "v4", "answer": ["piece", ...], "thinking": "on", "continues": false, "tools":
//   [...]}
//     -> {"reasoning": "...", "content": "...", "calls": [["name", "arguments"], ...], "repaired":
//     false}
//
// What is refused gives {"error": "..."}.
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/answer/dsml/dsml_parser.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom {
namespace {

std::string text_of(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string{};
}

bool is_set(const Json& line, std::string_view key, bool by_default) {
  const Json* value = line.find(key);
  return value != nullptr && value->is_bool() ? value->as_bool() : by_default;
}

Result<ChatOptions> options_of(const Json& line) {
  ChatOptions options;
  const std::string thinking = text_of(line, "thinking");
  if (thinking == "on") options.thinking = Thinking::kOn;
  if (thinking == "off") options.thinking = Thinking::kOff;
  if (!is_set(line, "add_generation_prompt", true)) {
    options.generation_prompt = GenerationPrompt::kNone;
  }
  if (is_set(line, "keep_reasoning", false)) options.past_reasoning = PastReasoning::kKeep;
  if (is_set(line, "raw_schema", false)) options.tool_schema = ToolSchema::kRaw;
  if (const std::string effort = text_of(line, "effort"); !effort.empty()) {
    FATHOM_ASSIGN(options.effort, parse_reasoning_effort(effort));
  }
  return options;
}

Result<std::string> prompt_of(const Json& line, const ChatFormat& format) {
  ChatReading reading = format.reading();
  if (is_set(line, "service", false)) reading.author = ChatReading::Author::kService;
  FATHOM_ASSIGN(ChatConversation chat,
                parse_chat(*line.find("messages"), line.find("tools"), reading));
  FATHOM_ASSIGN(chat.response_format, parse_response_format(line.find("response_format")));
  FATHOM_ASSIGN(const ChatOptions options, options_of(line));
  FATHOM_ASSIGN(const PromptText prompt, format.format(chat, options));
  JsonWriter writer;
  writer.begin_object().key("prompt").string(prompt.str()).key("control").begin_array();
  int64_t begin = 0;
  for (const PromptText::Segment& segment : prompt.segments()) {
    const auto end = begin + static_cast<int64_t>(segment.text.size());
    if (segment.kind == PromptText::Kind::kControl) {
      writer.begin_array().integer(begin).integer(end).end_array();
    }
    begin = end;
  }
  writer.end_array().end_object();
  return writer.take();
}

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;

  void add(const AnswerDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      calls.resize(static_cast<size_t>(call.index) + 1);
      calls.back().first += call.name;
      calls.back().second += call.arguments;
    }
  }
};

Result<std::string> answer_of(const Json& line, const ChatFormat& format) {
  FATHOM_ASSIGN(const ChatOptions options, options_of(line));
  FATHOM_ASSIGN(ChatConversation chat, parse_chat(Json::array(), line.find("tools")));
  AnswerGrammar grammar = format.answer_grammar(options);
  grammar.continues_turn = is_set(line, "continues", false);
  DsmlParser parser{grammar, chat.tools};
  Answer answer;
  for (const Json& piece : line.find("answer")->items())
    answer.add(parser.push(piece.as_string()));
  answer.add(parser.finish());
  JsonWriter writer;
  writer.begin_object();
  writer.key("reasoning").string(answer.reasoning).key("content").string(answer.content);
  writer.key("calls").begin_array();
  for (const auto& [name, arguments] : answer.calls)
    writer.begin_array().string(name).string(arguments).end_array();
  writer.end_array();
  writer.key("repaired").boolean(parser.repairs() != AnswerRepairs{}).end_object();
  return writer.take();
}

Result<std::string> reply_to(const std::string& text) {
  FATHOM_ASSIGN(const Json line, parse_json(text, {}, "line"));
  FATHOM_ASSIGN(const ChatFormat* format, find_chat_format(text_of(line, "format")));
  return line.find("answer") != nullptr ? answer_of(line, *format) : prompt_of(line, *format);
}

std::string error_line(const Status& status) {
  JsonWriter writer;
  writer.begin_object().key("error").string(status.message()).end_object();
  return writer.take();
}

}  // namespace
}  // namespace fathom

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto reply = fathom::reply_to(line);
    std::puts(reply.ok() ? reply->c_str() : fathom::error_line(reply.status()).c_str());
  }
  return 0;
}
