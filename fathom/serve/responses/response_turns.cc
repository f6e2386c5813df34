#include "fathom/serve/responses/response_turns.h"

#include <array>

#include "fathom/serve/responses/custom_input.h"
#include "fathom/serve/responses/sealed_reasoning.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

constexpr std::array<std::string_view, 4> kTexts = {"input_text", "output_text", "text", "refusal"};
constexpr std::array<std::string_view, 2> kReasoningTexts = {"reasoning_text", "text"};
constexpr int64_t kMaxCallId = kMaxCallIdBytes;
constexpr std::string_view kItems =
    "message, reasoning, function_call, function_call_output, custom_tool_call or "
    "custom_tool_call_output";

class InputReader {
 public:
  InputReader(Fields& fields, const ChatReading& reading)
      : fields_(fields), content_(fields, reading) {}

  PlacedConversation read() && {
    if (auto instructions = fields_.text("instructions", kMaxTextBytes)) {
      out_.add(ChatRole::kSystem, "instructions").content = std::move(*instructions);
    }
    read_input();
    return std::move(out_);
  }

 private:
  void read_input();
  void read_item(const Json& json, const std::string& place);
  void read_message(Fields& item, const std::string& place);
  void read_reasoning(Fields& item, const std::string& place);
  void read_call(Fields& item, std::string_view type, const std::string& place);
  void read_result(Fields& item, const std::string& place);

  ChatMessage& last() { return out_.conversation.messages.back(); }

  ChatMessage& open_turn(const std::string& place);
  void close_turn();

  Fields& fields_;
  ContentReader content_;
  PlacedConversation out_;
  bool in_turn_ = false;  // whether the last message is an assistant's that items may join
};

void InputReader::read_input() {
  const Json* input = fields_.value("input");
  if (!content_.ok()) return;
  if (input == nullptr) {
    return content_.fail("input", "missing, expected a string or an array of items");
  }
  if (input->is_string()) {
    out_.add(ChatRole::kUser, "input").content = input->as_string();
    return;
  }
  const Json* items = fields_.array("input", kMaxChatMessages);
  if (items == nullptr) return;
  for (size_t i = 0; i < items->items().size() && content_.ok(); ++i)
    read_item(items->items()[i], str_cat("input[", i, "]"));
  close_turn();
  if (items->items().empty()) out_.add(ChatRole::kUser, "input");
}

ChatMessage& InputReader::open_turn(const std::string& place) {
  if (!in_turn_) out_.add(ChatRole::kAssistant, place);
  in_turn_ = true;
  return last();
}

void InputReader::close_turn() {
  if (in_turn_ && last().content.empty() && last().tool_calls.empty()) {
    out_.conversation.messages.pop_back();
    out_.places.pop_back();
  }
  in_turn_ = false;
}

void InputReader::read_item(const Json& json, const std::string& place) {
  if (!json.is_object()) {
    return content_.fail(place, str_cat("found ", json.kind_name(), ", expected an object"));
  }
  Fields item(json, place);
  const std::string type = item.text("type", kMaxTextBytes).value_or("message");
  if (item.ok()) {
    if (type == "message") {
      read_message(item, place);
    } else if (type == "reasoning") {
      read_reasoning(item, place);
    } else if (type == "function_call" || type == "custom_tool_call") {
      read_call(item, type, place);
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      read_result(item, place);
    } else {
      content_.other_part(item, type, kItems, ContentReader::Of::kTurn);
    }
  }
  content_.take_error(item);
}

void InputReader::read_message(Fields& item, const std::string& place) {
  const auto role = item.word("role", {"user", "assistant", "system", "developer"});
  if (!role) {
    if (item.ok()) {
      content_.fail(item.at("role"), "missing, expected user, assistant, system or developer");
    }
    return;
  }
  std::string text = content_.text(item.value("content"), item.at("content"), kTexts);
  if (*role == 1) {
    if (in_turn_ && !last().content.empty()) close_turn();
    open_turn(place).content = std::move(text);
    return;
  }
  close_turn();
  out_.add(*role == 0 ? ChatRole::kUser : ChatRole::kSystem, place).content = std::move(text);
}

void InputReader::read_reasoning(Fields& item, const std::string& place) {
  std::string text;
  if (const Json* content = item.value("content")) {
    text = content_.text(content, item.at("content"), kReasoningTexts);
  }
  const auto sealed = item.text("encrypted_content", kMaxTextBytes);
  if (text.empty() && sealed) text = open_reasoning(*sealed).value_or("");
  if (text.empty()) return;
  if (in_turn_ && (!last().content.empty() || !last().tool_calls.empty())) close_turn();
  open_turn(place).reasoning_content += text;
}

void InputReader::read_call(Fields& item, std::string_view type, const std::string& place) {
  ToolCall call;
  call.id = item.required_text("call_id", kMaxCallId);
  call.name = item.required_text("name", kMaxCallId);
  call.arguments = type == "function_call"
                       ? item.required_text("arguments", kMaxTextBytes)
                       : custom_arguments(item.required_text("input", kMaxTextBytes));
  if (item.ok()) open_turn(place).tool_calls.push_back(std::move(call));
}

void InputReader::read_result(Fields& item, const std::string& place) {
  close_turn();
  std::string id = item.required_text("call_id", kMaxCallId);
  content_.take_error(item);
  std::string text = content_.text(item.value("output"), item.at("output"), kTexts,
                                   ContentReader::Of::kToolResult);
  ChatMessage& result = out_.add(ChatRole::kTool, place);
  result.tool_call_id = std::move(id);
  result.content = std::move(text);
}

}  // namespace

PlacedConversation read_response_turns(Fields& fields, const ChatReading& reading) {
  return InputReader(fields, reading).read();
}

}  // namespace fathom::serve
