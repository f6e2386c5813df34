#include "cli/io/chat_input.h"

#include "cli/io/text_input.h"
#include "fathom/os/file.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::cli {

Result<const ChatFormat*> chat_format_of_model(std::string_view model_type,
                                               const std::string& directory,
                                               const Tokenizer& tokenizer,
                                               const std::string& name) {
  if (!name.empty()) return find_chat_format(name);
  return choose_chat_format_of_directory(model_type, directory, tokenizer.config());
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

Result<ChatConversation> read_conversation(const std::string& path) {
  FATHOM_ASSIGN(const std::string text, read_text(path));
  FATHOM_ASSIGN(const Json json, parse_json(text, {.max_bytes = kMaxInputBytes}, path));
  const Json* messages = json.is_array() ? &json : json.find("messages");
  if (messages == nullptr) {
    return corrupt(str_cat(path, ": found ", json.kind_name(),
                           " without messages, expected {\"messages\": [...]} or a list"));
  }
  Result<ChatConversation> chat = parse_chat(*messages, json.find("tools"));
  // The reader serves requests too, whose faults are the caller's; here a file is at fault.
  if (!chat.ok()) return corrupt(str_cat(path, ": ", chat.status().message()));
  return chat;
}

}  // namespace fathom::cli
