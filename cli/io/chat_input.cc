#include "cli/io/chat_input.h"

#include <vector>

#include "cli/flags.h"
#include "cli/io/text_input.h"
#include "fathom/os/file.h"
#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::cli {

Status check_chat_format(const std::string& name) {
  if (name.empty()) return {};
  return find_chat_format(name).status().add_context("--chat-format");
}

Result<const ChatFormat*> chat_format_of_model(std::string_view model_type,
                                               const std::string& directory,
                                               const Tokenizer& tokenizer,
                                               const std::string& name) {
  if (!name.empty()) return find_chat_format(name);
  return choose_chat_format_of_directory(model_type, directory, tokenizer.config());
}

void add_chat_flags(CLI::App& app, ChatFlags& flags, CLI::Option* needed) {
  std::vector<CLI::Option*> options = {
      app.add_option("--chat-format", flags.chat_format,
                     str_cat(chat_format_names(), " (default: by model)")),
      app.add_option("--thinking", flags.thinking, "Whether the model thinks before it answers")
          ->check(one_of({"default", "on", "off"}))
          ->capture_default_str(),
      app.add_option("--effort", flags.effort, "How long V4 thinks; none: not at all, also V3.2")
          ->check(one_of({"default", "none", "minimal", "low", "medium", "high", "xhigh", "max"}))
          ->capture_default_str(),
      app.add_flag("--keep-reasoning", flags.keep_reasoning,
                   "V4: past turns keep their reasoning")};
  if (needed == nullptr) return;
  for (CLI::Option* option : options)
    option->needs(needed);
}

Result<ChatOptions> chat_options(const ChatFlags& flags) {
  ChatOptions options;
  if (flags.thinking == "on") options.thinking = Thinking::kOn;
  if (flags.thinking == "off") options.thinking = Thinking::kOff;
  if (flags.keep_reasoning) options.past_reasoning = PastReasoning::kKeep;
  if (flags.effort != "default") {
    FATHOM_ASSIGN(options.effort, parse_reasoning_effort(flags.effort));
  }
  return options;
}

Result<std::string> model_type_of(const std::string& directory) {
  const Result<std::string> text = read_file(directory + "/config.json", JsonLimits{}.max_bytes);
  if (!text.ok()) {
    if (text.status().code() == StatusCode::kNotFound) return std::string{};
    return Status::error(text.status().code(), text.status().message());
  }
  FATHOM_ASSIGN(const Json config, parse_json(*text, JsonLimits{}, "config.json"));
  const Json* type = config.find("model_type");
  return type != nullptr && type->is_string() ? type->as_string() : std::string{};
}

Result<ChatConversation> read_conversation(const std::string& path, const ChatReading& reading) {
  FATHOM_ASSIGN(const std::string text, read_text(path));
  FATHOM_ASSIGN(const Json json, parse_json(text, {.max_bytes = kMaxInputBytes}, path));
  const Json* schema = json.find("schema");
  if (schema != nullptr && *schema != Json::string(std::string(kConversationSchema))) {
    return corrupt(str_cat(path, ": schema is ", dump_json(*schema), ", expected \"",
                           kConversationSchema, "\""));
  }
  const Json* messages = json.is_array() ? &json : json.find("messages");
  if (messages == nullptr) {
    return corrupt(str_cat(path, ": found ", json.kind_name(),
                           " without messages, expected {\"messages\": [...]} or a list"));
  }
  Result<ChatConversation> chat = parse_chat(*messages, json.find("tools"), reading);
  // The reader serves requests too, whose faults are the caller's; here a file is at fault.
  if (!chat.ok()) return corrupt(str_cat(path, ": ", chat.status().message()));
  Result<ResponseFormat> format = parse_response_format(json.find("response_format"));
  if (!format.ok()) return corrupt(str_cat(path, ": ", format.status().message()));
  chat->response_format = *std::move(format);
  return chat;
}

}  // namespace fathom::cli
