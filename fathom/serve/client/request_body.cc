#include "fathom/serve/client/request_body.h"

#include <algorithm>

#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

class BodyWriter {
 public:
  BodyWriter(TextRoute route, const TextRequest& request) : route_(route), request_(request) {}

  std::string write() {
    out_.begin_object();
    add("model", Json::string(request_.model));
    add_prompt();
    if (!request_.tools.is_null()) add("tools", request_.tools);
    if (request_.max_tokens > 0) {
      const bool chat = route_ == TextRoute::kChat;
      add(chat ? "max_completion_tokens" : "max_tokens", Json::integer(request_.max_tokens));
    }
    if (request_.ignore_eos) add("ignore_eos", Json::boolean(true));
    add("stream", Json::boolean(true));
    if (route_ != TextRoute::kMessages) {
      add("stream_options", Json::object({{"include_usage", Json::boolean(true)}}));
    }
    if (request_.extra.is_object()) {
      for (const auto& [name, value] : request_.extra.members())
        out_.key(name).json(value);
    }
    out_.end_object();
    return out_.take();
  }

 private:
  void add(std::string_view name, const Json& value) {
    if (request_.extra.find(name) == nullptr) out_.key(name).json(value);
  }

  void add_prompt() {
    if (route_ == TextRoute::kCompletions) {
      if (request_.ids.empty()) return add("prompt", Json::string(request_.text));
      out_.key("prompt").begin_array();
      for (const int32_t id : request_.ids)
        out_.integer(id);
      out_.end_array();
      return;
    }
    std::vector<Json> messages = request_.messages;
    if (messages.empty()) messages.push_back(chat_message("user", request_.text));
    if (route_ == TextRoute::kMessages) add_system(messages);
    add("messages", Json::array(std::move(messages)));
  }

  // Anthropic's API has the system message beside the others.
  void add_system(std::vector<Json>& messages) {
    const Json* role = messages.front().find("role");
    const Json* content = messages.front().find("content");
    const bool is_system = role != nullptr && content != nullptr && *role == Json::string("system");
    if (!is_system) return;
    add("system", *content);
    messages.erase(messages.begin());
  }

  TextRoute route_;
  const TextRequest& request_;
  JsonWriter out_;
};

}  // namespace

std::string request_body(TextRoute route, const TextRequest& request) {
  return BodyWriter(route, request).write();
}

Json chat_message(std::string_view role, std::string content) {
  return Json::object(
      {{"role", Json::string(std::string(role))}, {"content", Json::string(std::move(content))}});
}

std::vector<ReceivedToolCall> whole_tool_calls(const ReceivedAnswer& answer) {
  std::vector<ReceivedToolCall> whole;
  std::copy_if(
      answer.tool_calls.begin(), answer.tool_calls.end(), std::back_inserter(whole),
      [](const ReceivedToolCall& call) { return !call.name.empty() && is_json(call.arguments); });
  return whole;
}

Json assistant_message(const ReceivedAnswer& answer) {
  Json message = chat_message("assistant", answer.content);
  if (!answer.reasoning.empty()) {
    message.members().emplace_back("reasoning_content", Json::string(answer.reasoning));
  }
  std::vector<Json> calls;
  for (const ReceivedToolCall& call : whole_tool_calls(answer)) {
    calls.push_back(
        Json::object({{"id", Json::string(call.id)},
                      {"type", Json::string("function")},
                      {"function", Json::object({{"name", Json::string(call.name)},
                                                 {"arguments", Json::string(call.arguments)}})}}));
  }
  if (!calls.empty()) message.members().emplace_back("tool_calls", Json::array(std::move(calls)));
  return message;
}

}  // namespace fathom::serve
