#include "cli/io/chat_input.h"

#include "cli/io/text_input.h"
#include "fathom/os/file.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::cli {

Result<const ChatFormat*> chat_format_of_model(const std::string& directory,
                                               const std::string& name) {
  if (!name.empty()) return find_chat_format(name);
  std::string model_type;
  Result<std::string> text = read_file(directory + "/config.json", JsonLimits{}.max_bytes);
  if (text.ok()) {
    FATHOM_ASSIGN(const Json config, parse_json(text.value(), JsonLimits{}, "config.json"));
    const Json* type = config.find("model_type");
    if (type != nullptr && type->is_string()) model_type = type->as_string();
  } else if (text.status().code() != StatusCode::kNotFound) {
    return std::move(text).status();
  }
  return choose_chat_format_of_directory(model_type, directory);
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
