#include "fathom/serve/anthropic/message_turns.h"

#include <array>
#include <iterator>

#include "fathom/base/log.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

constexpr std::array<std::string_view, 1> kText = {"text"};
constexpr int64_t kMaxCallId = kMaxCallIdBytes;
constexpr std::string_view kUserBlocks = "text or tool_result";
constexpr std::string_view kAssistantBlocks = "text, thinking, redacted_thinking or tool_use";

std::string without_billing_header(std::string text) {
  if (!text.starts_with("x-anthropic-billing-header:")) return text;
  const size_t line_end = text.find('\n');
  return line_end == text.npos ? std::string() : text.substr(line_end + 1);
}

class TurnReader {
 public:
  TurnReader(Fields& fields, const ChatReading& reading, const ThinkingSigner& signer)
      : fields_(fields), content_(fields, reading), signer_(signer) {}

  PlacedConversation read() && {
    const Json* system = fields_.value("system");
    if (system != nullptr) add_system(system, "system");
    const Json* messages = fields_.array("messages", kMaxChatMessages);
    if (messages == nullptr) {
      if (fields_.ok()) content_.fail("messages", "missing, expected an array");
      return std::move(out_);
    }
    for (size_t i = 0; i < messages->items().size() && content_.ok(); ++i)
      read_message(messages->items()[i], str_cat("messages[", i, "]"));
    if (!out_.conversation.messages.empty()) {
      ChatMessage& last = out_.conversation.messages.back();
      const bool goes_on = last.role == ChatRole::kAssistant && last.tool_calls.empty();
      if (goes_on) last.end = TurnEnd::kContinue;
    }
    if (num_foreign_ > 0) {
      log_debug("messages: ", num_foreign_,
                " thinking blocks left out, as this server did not sign them");
    }
    return std::move(out_);
  }

 private:
  void read_message(const Json& json, const std::string& place);
  void add_system(const Json* content, const std::string& place);
  void read_user_block(Fields& block,
                       std::string_view type,
                       const std::string& place,
                       const std::string& at);
  void read_assistant_block(Fields& block, std::string_view type);
  void add_text(std::string_view text);

  ChatMessage& last() { return out_.conversation.messages.back(); }

  Fields& fields_;
  ContentReader content_;
  const ThinkingSigner& signer_;
  PlacedConversation out_;
  // Of the turn that is being read.
  bool takes_text_ = false;  // whether its last message is one that texts belong to
  bool has_text_ = false;
  int num_foreign_ = 0;
};

void TurnReader::add_system(const Json* content, const std::string& place) {
  const std::string where = place == "system" ? place : place + ".content";
  std::vector<std::string> kept;
  for (std::string& text : content_.texts(content, where, kText)) {
    const bool was_empty = text.empty();
    text = without_billing_header(std::move(text));
    if (was_empty || !text.empty()) kept.push_back(std::move(text));
  }
  if (!kept.empty()) out_.add(ChatRole::kSystem, place).content = content_.join(kept);
}

void TurnReader::read_message(const Json& json, const std::string& place) {
  if (!json.is_object()) {
    return content_.fail(place, str_cat("found ", json.kind_name(), ", expected an object"));
  }
  Fields message(json, place);
  const auto role = message.word("role", {"user", "assistant", "system"});
  const Json* content = message.value("content");
  content_.take_error(message);
  if (!content_.ok()) return;
  if (!role) {
    return content_.fail(message.at("role"), "missing, expected user or assistant");
  }
  if (*role == 2) return add_system(content, place);
  const bool is_user = *role == 0;
  const ChatRole chat_role = is_user ? ChatRole::kUser : ChatRole::kAssistant;
  const std::string where = message.at("content");
  if (content == nullptr || !content->is_array()) {
    std::string text = content_.text(content, where, kText);
    if (content_.ok()) out_.add(chat_role, place).content = std::move(text);
    return;
  }

  const std::vector<Json>& blocks = content->items();
  content_.count(blocks.size(), where);
  takes_text_ = has_text_ = false;
  if (!is_user || blocks.empty()) {
    out_.add(chat_role, place);
    takes_text_ = true;
  }
  for (size_t i = 0; i < blocks.size() && content_.ok(); ++i) {
    const std::string at = str_cat(where, "[", i, "]");
    if (!blocks[i].is_object()) {
      return content_.fail(at, str_cat("found ", blocks[i].kind_name(), ", expected an object"));
    }
    Fields block(blocks[i], at);
    const std::string type = block.required_text("type", kMaxTextBytes);
    if (block.ok()) {
      is_user ? read_user_block(block, type, place, at) : read_assistant_block(block, type);
    }
    content_.take_error(block);
  }
}

void TurnReader::add_text(std::string_view text) {
  content_.append(last().content, text, !has_text_);
  has_text_ = true;
}

void TurnReader::read_user_block(Fields& block,
                                 std::string_view type,
                                 const std::string& place,
                                 const std::string& at) {
  if (type == "text") {
    if (!takes_text_) {
      out_.add(ChatRole::kUser, place);
      has_text_ = false;
    }
    takes_text_ = true;
    return add_text(block.required_text("text", kMaxTextBytes));
  }
  if (type != "tool_result") {
    content_.other_part(block, type, kUserBlocks, ContentReader::Of::kTurn);
    return;
  }
  takes_text_ = false;
  ChatMessage& result = out_.add(ChatRole::kTool, at);
  result.tool_call_id = block.required_text("tool_use_id", kMaxCallId);
  if (block.boolean("is_error").value_or(false)) result.content = "Error: ";
  content_.take_error(block);
  if (const Json* content = block.value("content")) {
    result.content +=
        content_.text(content, block.at("content"), kText, ContentReader::Of::kToolResult);
  }
}

void TurnReader::read_assistant_block(Fields& block, std::string_view type) {
  if (type == "text") return add_text(block.required_text("text", kMaxTextBytes));
  if (type == "redacted_thinking") return;
  if (type == "thinking") {
    const std::string thinking = block.required_text("thinking", kMaxTextBytes);
    const std::string signature = block.text("signature", kMaxTextBytes).value_or("");
    if (!signature.empty() && !signer_.holds(thinking, signature)) {
      ++num_foreign_;
      return;
    }
    std::string& reasoning = last().reasoning_content;
    content_.append(reasoning, thinking, reasoning.empty());
    return;
  }
  if (type != "tool_use") {
    content_.other_part(block, type, kAssistantBlocks, ContentReader::Of::kTurn);
    return;
  }
  ToolCall call;
  call.id = block.required_text("id", kMaxCallId);
  call.name = block.required_text("name", kMaxCallId);
  const Json* input = block.object("input");
  if (!block.ok()) return;
  if (input == nullptr) {
    return content_.fail(block.at("input"), "missing, expected an object");
  }
  call.arguments = dump_json_like_python(*input);
  last().tool_calls.push_back(std::move(call));
}

}  // namespace

PlacedConversation read_message_turns(Fields& fields,
                                      const ChatReading& reading,
                                      const ThinkingSigner& signer) {
  return TurnReader(fields, reading, signer).read();
}

}  // namespace fathom::serve
