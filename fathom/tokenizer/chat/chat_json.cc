#include "fathom/tokenizer/chat/chat_json.h"

#include <array>
#include <span>
#include <utility>

#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

Status wrong(std::string_view place, const Json* found, std::string_view expected) {
  return invalid_argument(str_cat(place, " is ", found == nullptr ? "missing" : found->kind_name(),
                                  ", expected ", expected));
}

bool is_absent(const Json* value) {
  return value == nullptr || value->is_null();
}

Result<std::string> optional_string(const Json& object,
                                    std::string_view key,
                                    std::string_view place) {
  const Json* value = object.find(key);
  if (is_absent(value)) return std::string{};
  if (!value->is_string()) return wrong(str_cat(place, ".", key), value, "a string");
  return value->as_string();
}

Result<std::string> required_string(const Json& object,
                                    std::string_view key,
                                    std::string_view place) {
  const Json* value = object.find(key);
  if (value == nullptr || !value->is_string())
    return wrong(str_cat(place, ".", key), value, "a string");
  return value->as_string();
}

template <typename Value>
using Named = std::pair<std::string_view, Value>;

constexpr std::array<Named<ChatTask>, 6> kTasks = {{{"action", ChatTask::kAction},
                                                    {"query", ChatTask::kQuery},
                                                    {"authority", ChatTask::kAuthority},
                                                    {"domain", ChatTask::kDomain},
                                                    {"title", ChatTask::kTitle},
                                                    {"read_url", ChatTask::kReadUrl}}};

constexpr std::array<Named<ReasoningEffort>, 7> kEfforts = {{
    {"none", ReasoningEffort::kNone},
    {"minimal", ReasoningEffort::kMinimal},
    {"low", ReasoningEffort::kLow},
    {"medium", ReasoningEffort::kMedium},
    {"high", ReasoningEffort::kHigh},
    {"xhigh", ReasoningEffort::kXhigh},
    {"max", ReasoningEffort::kMax},
}};

template <typename Value>
Result<Value> find_named(std::span<const Named<Value>> known,
                         std::string_view name,
                         std::string_view place) {
  std::string names;
  for (const auto& [known_name, value] : known) {
    if (known_name == name) return value;
    names += str_cat(names.empty() ? "" : ", ", known_name);
  }
  return invalid_argument(
      str_cat(place, " is \"", name.substr(0, 40), "\", expected one of ", names));
}

Result<ChatRole> parse_role(const Json& message,
                            std::string_view place,
                            const ChatReading& reading) {
  FATHOM_ASSIGN(const std::string role, required_string(message, "role", place));
  if (role == "system") return ChatRole::kSystem;
  if (role == "developer") {
    const bool is_own = reading.author == ChatReading::Author::kService;
    return is_own ? ChatRole::kDeveloper : ChatRole::kSystem;
  }
  if (role == "user") return ChatRole::kUser;
  if (role == "assistant") return ChatRole::kAssistant;
  if (role == "tool") return ChatRole::kTool;
  if (role == "latest_reminder") return ChatRole::kLatestReminder;
  return invalid_argument(
      str_cat(place, ".role is \"", role.substr(0, 40),
              "\", expected system, developer, user, assistant, tool or latest_reminder"));
}

Result<std::string> parse_part(const Json& part,
                               ChatRole role,
                               const std::string& place,
                               const ChatReading& reading) {
  if (!part.is_object()) return wrong(place, &part, "an object");
  FATHOM_ASSIGN(const std::string type, required_string(part, "type", place));
  if (type == "text") return required_string(part, "text", place);
  if (role == ChatRole::kTool &&
      reading.other_parts_of_results == ChatReading::OtherParts::kNamed) {
    return str_cat("[Unsupported ", type, "]");
  }
  return unsupported(str_cat(place, ".type is \"", type.substr(0, 40), "\", expected text"));
}

// An id that a client made up or got from us.
Result<std::string> optional_id(const Json& object, std::string_view key, std::string_view place) {
  FATHOM_ASSIGN(std::string id, optional_string(object, key, place));
  if (id.size() > kMaxCallIdBytes) {
    return invalid_argument(str_cat(place, ".", key, " is ", id.size(),
                                    " bytes long, expected at most ", kMaxCallIdBytes));
  }
  return id;
}

// The reasoning of a turn, under either name.
Result<std::string> parse_reasoning(const Json& message, std::string_view place) {
  const Json* other = message.find("reasoning");
  const Json* usual = message.find("reasoning_content");
  if (is_absent(usual) && other != nullptr && other->is_string()) return other->as_string();
  return optional_string(message, "reasoning_content", place);
}

// A string, null, or a list of parts.
Result<std::string> parse_content(const Json* content,
                                  ChatRole role,
                                  std::string_view place,
                                  const ChatReading& reading) {
  if (content != nullptr && content->is_string()) return content->as_string();
  if (is_absent(content)) {
    if (role == ChatRole::kAssistant) return std::string{};
    return wrong(place, content, "a string");
  }
  if (!content->is_array()) return wrong(place, content, "a string or a list of parts");
  std::string text;
  for (size_t i = 0; i < content->items().size(); ++i) {
    FATHOM_ASSIGN(const std::string part,
                  parse_part(content->items()[i], role, str_cat(place, "[", i, "]"), reading));
    if (i > 0) text += reading.part_separator;
    text += part;
  }
  return text;
}

Result<ToolCall> parse_tool_call(const Json& json, const std::string& place) {
  if (!json.is_object()) return wrong(place, &json, "an object");
  ToolCall call;
  FATHOM_ASSIGN(call.id, optional_id(json, "id", place));
  const Json* function = json.find("function");
  const std::string function_place = place + ".function";
  if (function == nullptr || !function->is_object())
    return wrong(function_place, function, "an object");
  FATHOM_ASSIGN(call.name, required_string(*function, "name", function_place));
  // Arguments are JSON text; some clients send the value itself.
  const Json* arguments = function->find("arguments");
  if (arguments == nullptr) return wrong(function_place + ".arguments", arguments, "a string");
  call.arguments =
      arguments->is_string() ? arguments->as_string() : dump_json_like_python(*arguments);
  return call;
}

Result<ToolDefinition> parse_tool(const Json& json, const std::string& place) {
  if (!json.is_object()) return wrong(place, &json, "an object");
  FATHOM_ASSIGN(const std::string type, required_string(json, "type", place));
  if (type != "function") {
    return invalid_argument(
        str_cat(place, ".type is \"", type.substr(0, 40), "\", expected function"));
  }
  const Json* function = json.find("function");
  const std::string function_place = place + ".function";
  if (function == nullptr || !function->is_object())
    return wrong(function_place, function, "an object");
  ToolDefinition tool;
  FATHOM_ASSIGN(tool.name, required_string(*function, "name", function_place));
  FATHOM_ASSIGN(tool.description, optional_string(*function, "description", function_place));
  const Json* parameters = function->find("parameters");
  if (!is_absent(parameters)) {
    if (!parameters->is_object())
      return wrong(function_place + ".parameters", parameters, "an object");
    tool.parameters = *parameters;
  }
  tool.definition = json;
  return tool;
}

Result<std::vector<ToolDefinition>> parse_tools(const Json* json, const std::string& place) {
  std::vector<ToolDefinition> tools;
  if (is_absent(json)) return tools;
  if (!json->is_array()) return wrong(place, json, "an array");
  if (json->items().size() > kMaxChatTools) {
    return invalid_argument(str_cat(place, " has ", json->items().size(),
                                    " entries, more than the limit of ", kMaxChatTools));
  }
  for (size_t i = 0; i < json->items().size(); ++i) {
    FATHOM_ASSIGN(ToolDefinition tool, parse_tool(json->items()[i], str_cat(place, "[", i, "]")));
    tools.push_back(std::move(tool));
  }
  return tools;
}

// What only the service's own messages carry. A response format is printed as it stands.
Status parse_service_fields(const Json& json, const std::string& place, ChatMessage& message) {
  FATHOM_ASSIGN(message.tools, parse_tools(json.find("tools"), place + ".tools"));
  if (const Json* format = json.find("response_format"); !is_absent(format)) {
    message.response_format = {ResponseFormat::Kind::kJsonSchema, *format};
  }
  if (const Json* task = json.find("task"); !is_absent(task)) {
    FATHOM_ASSIGN(const std::string name, required_string(json, "task", place));
    FATHOM_ASSIGN(message.task, find_named<ChatTask>(kTasks, name, place + ".task"));
  }
  return {};
}

Result<ChatMessage> parse_message(const Json& json,
                                  const std::string& place,
                                  const ChatReading& reading) {
  if (!json.is_object()) return wrong(place, &json, "an object");
  ChatMessage message;
  FATHOM_ASSIGN(message.role, parse_role(json, place, reading));
  FATHOM_ASSIGN(message.content,
                parse_content(json.find("content"), message.role, place + ".content", reading));
  FATHOM_ASSIGN(message.reasoning_content, parse_reasoning(json, place));
  FATHOM_ASSIGN(message.tool_call_id, optional_id(json, "tool_call_id", place));
  if (const Json* calls = json.find("tool_calls"); !is_absent(calls)) {
    if (!calls->is_array()) return wrong(place + ".tool_calls", calls, "an array");
    for (size_t i = 0; i < calls->items().size(); ++i) {
      FATHOM_ASSIGN(ToolCall call,
                    parse_tool_call(calls->items()[i], str_cat(place, ".tool_calls[", i, "]")));
      message.tool_calls.push_back(std::move(call));
    }
  }
  if (const Json* prefix = json.find("prefix"); !is_absent(prefix)) {
    if (!prefix->is_bool()) return wrong(place + ".prefix", prefix, "a boolean");
    message.end = prefix->as_bool() ? TurnEnd::kContinue : TurnEnd::kComplete;
  }
  if (reading.author == ChatReading::Author::kService) {
    FATHOM_TRY(parse_service_fields(json, place, message));
  }
  return message;
}

}  // namespace

Result<ChatConversation> parse_chat(const Json& messages,
                                    const Json* tools,
                                    const ChatReading& reading) {
  if (!messages.is_array()) return wrong("messages", &messages, "an array");
  if (messages.items().size() > kMaxChatMessages) {
    return invalid_argument(str_cat("messages has ", messages.items().size(),
                                    " entries, more than the limit of ", kMaxChatMessages));
  }
  ChatConversation conversation;
  size_t num_parts = 0;
  for (size_t i = 0; i < messages.items().size(); ++i) {
    const Json* content = messages.items()[i].find("content");
    if (content != nullptr && content->is_array()) num_parts += content->items().size();
    if (num_parts > kMaxContentParts) {
      return invalid_argument(str_cat("messages[", i, "].content is part ", kMaxContentParts + 1,
                                      " of the request and on, expected at most ", kMaxContentParts,
                                      " parts"));
    }
    FATHOM_ASSIGN(ChatMessage message,
                  parse_message(messages.items()[i], str_cat("messages[", i, "]"), reading));
    conversation.messages.push_back(std::move(message));
  }
  FATHOM_ASSIGN(conversation.tools, parse_tools(tools, "tools"));
  return conversation;
}

Result<ResponseFormat> parse_response_format(const Json* json) {
  using Kind = ResponseFormat::Kind;
  if (is_absent(json)) return ResponseFormat{};
  if (!json->is_object()) return wrong("response_format", json, "an object");
  FATHOM_ASSIGN(const std::string type, required_string(*json, "type", "response_format"));
  if (type == "text") return ResponseFormat{};
  if (type == "json_object") return ResponseFormat{.kind = Kind::kJsonObject};
  if (type != "json_schema") {
    return invalid_argument(str_cat("response_format.type is \"", type.substr(0, 40),
                                    "\", expected text, json_object or json_schema"));
  }
  const Json* format = json->find("json_schema");
  if (format == nullptr || !format->is_object()) {
    return wrong("response_format.json_schema", format, "an object");
  }
  const Json* schema = format->find("schema");
  if (schema == nullptr || !schema->is_object()) {
    return wrong("response_format.json_schema.schema", schema, "an object");
  }
  return ResponseFormat{.kind = Kind::kJsonSchema, .schema = *schema};
}

Result<ReasoningEffort> parse_reasoning_effort(std::string_view name) {
  return find_named<ReasoningEffort>(kEfforts, name, "reasoning_effort");
}

}  // namespace fathom
