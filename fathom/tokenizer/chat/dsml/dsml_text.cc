#include "fathom/tokenizer/chat/dsml/dsml_text.h"

#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/control_tokens.h"
#include "fathom/tokenizer/chat/dsml/python_json.h"

namespace fathom {
namespace {

void append_parameter(PromptText& prompt, const PythonMember& parameter) {
  prompt.text("<").control(control::kDsml).text("parameter name=\"").text(parameter.key);
  prompt.text(parameter.is_string ? "\" string=\"true\">" : "\" string=\"false\">");
  prompt.text(parameter.text).text("</").control(control::kDsml).text("parameter>");
}

void append_call(PromptText& prompt, const ToolCall& call) {
  auto parameters = read_python_object(call.arguments);
  if (!parameters) parameters = {{"arguments", true, call.arguments}};
  prompt.text("<").control(control::kDsml).text("invoke name=\"").text(call.name).text("\">\n");
  for (const PythonMember& parameter : *parameters) {
    if (&parameter != parameters->data()) prompt.text("\n");
    append_parameter(prompt, parameter);
  }
  prompt.text("\n</").control(control::kDsml).text("invoke>\n");
}

// name, description and parameters, and no more.
Json normal_schema(const ToolDefinition& tool) {
  std::vector<JsonMember> members;
  members.emplace_back("name", Json::string(tool.name));
  members.emplace_back("description", Json::string(tool.description));
  members.emplace_back("parameters", tool.parameters.is_null() ? Json::object() : tool.parameters);
  return Json::object(std::move(members));
}

Json raw_schema(const ToolDefinition& tool) {
  const Json* function = tool.definition.find("function");
  return function != nullptr ? *function : tool.definition;
}

}  // namespace

void append_dsml_calls(PromptText& prompt, const ChatMessage& message, std::string_view section) {
  if (message.tool_calls.empty()) return;
  prompt.text("\n\n<");
  if (!message.sampled_calls.ids.empty()) {
    prompt.sampled(message.sampled_calls);
    return;
  }
  prompt.control(control::kDsml).text(section).text(">\n");
  for (const ToolCall& call : message.tool_calls)
    append_call(prompt, call);
  prompt.text("</").control(control::kDsml).text(section).text(">");
}

void append_tool_schemas(PromptText& prompt,
                         const std::vector<ToolDefinition>& tools,
                         ToolSchema style) {
  for (const ToolDefinition& tool : tools) {
    if (&tool != tools.data()) prompt.text("\n");
    const Json schema = style == ToolSchema::kRaw ? raw_schema(tool) : normal_schema(tool);
    prompt.text(dump_json_like_python(schema));
  }
}

void append_response_schema(PromptText& prompt, const Json& schema) {
  prompt.text(
      "\n\n## Response Format:\n\n"
      "You MUST strictly adhere to the following schema to reply:\n");
  prompt.text(dump_json_like_python(schema));
}

std::vector<ChatMessage> with_first_system_message(const ChatConversation& conversation) {
  std::vector<ChatMessage> messages = conversation.messages;
  const bool has_format = conversation.response_format.kind != ResponseFormat::Kind::kText;
  if (conversation.tools.empty() && !has_format) return messages;
  if (messages.empty() || messages.front().role != ChatRole::kSystem) {
    messages.insert(messages.begin(), ChatMessage{.role = ChatRole::kSystem});
  }
  ChatMessage& system = messages.front();
  system.tools.insert(system.tools.begin(), conversation.tools.begin(), conversation.tools.end());
  if (has_format) system.response_format = conversation.response_format;
  return messages;
}

}  // namespace fathom
