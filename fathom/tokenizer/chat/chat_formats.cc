#include "fathom/tokenizer/chat/chat_formats.h"

#include <array>

#include "fathom/os/file.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

constexpr int64_t kMaxTemplateBytes = 4ll << 20;
constexpr std::string_view kNameOne = "name one with --chat-format (v2, v2.5, v3, r1, v3.1)";

bool holds(std::string_view text, std::string_view word) {
  return text.find(word) != text.npos;
}

}  // namespace

std::span<const ChatFormat* const> chat_formats() {
  static const std::array<const ChatFormat*, 5> formats = {&chat_v2(), &chat_v25(), &chat_v3(),
                                                           &chat_r1(), &chat_v31()};
  return formats;
}

Result<const ChatFormat*> find_chat_format(std::string_view name) {
  std::string names;
  for (const ChatFormat* format : chat_formats()) {
    if (format->name() == name) return format;
    names += str_cat(names.empty() ? "" : ", ", format->name());
  }
  return invalid_argument(
      str_cat("chat format \"", name, "\" is not known, expected one of ", names));
}

Result<const ChatFormat*> choose_chat_format(std::string_view model_type,
                                             std::string_view chat_template) {
  if (chat_template.empty()) {
    return unsupported(str_cat(
        "the checkpoint has no chat template, so its chat format is not known; ", kNameOne));
  }
  const bool has_turns =
      holds(chat_template, control::kUser) && holds(chat_template, control::kAssistant);
  const bool has_reasoning = holds(chat_template, control::kEndThink);
  // V3.2 and later mark their tool calls so; none of the formats here fits them.
  const bool has_dsml = holds(chat_template, "｜DSML｜");
  if (has_turns && !has_dsml) {
    if (has_reasoning) return holds(chat_template, "thinking") ? &chat_v31() : &chat_r1();
    // The templates of V2.5 and V3 are the same.
    return model_type == "deepseek_v2" ? &chat_v25() : &chat_v3();
  }
  const bool is_plain = holds(chat_template, "'User: '") && holds(chat_template, "'Assistant: '");
  if (is_plain && !has_dsml) return &chat_v2();
  return unsupported(str_cat("the chat template of this ",
                             model_type.empty() ? "checkpoint" : model_type,
                             " is none of the known ones; ", kNameOne));
}

Result<const ChatFormat*> choose_chat_format(std::string_view model_type,
                                             const Json& tokenizer_config) {
  const Json* chat_template = tokenizer_config.find("chat_template");
  if (chat_template == nullptr || chat_template->is_null()) {
    return choose_chat_format(model_type, std::string_view{});
  }
  if (chat_template->is_string()) {
    return choose_chat_format(model_type, std::string_view{chat_template->as_string()});
  }
  if (chat_template->is_array()) {
    for (const Json& entry : chat_template->items()) {
      const Json* name = entry.find("name");
      const Json* text = entry.find("template");
      const bool is_default =
          name != nullptr && name->is_string() && name->as_string() == "default";
      if (is_default && text != nullptr && text->is_string()) {
        return choose_chat_format(model_type, std::string_view{text->as_string()});
      }
    }
  }
  return unsupported(str_cat("chat_template in tokenizer_config.json is ",
                             chat_template->kind_name(), " without a template named default; ",
                             kNameOne));
}

Result<const ChatFormat*> choose_chat_format_of_directory(std::string_view model_type,
                                                          const std::string& dir,
                                                          const Json& tokenizer_config) {
  Result<std::string> chat_template =
      read_file(join_path(dir, "chat_template.jinja"), kMaxTemplateBytes);
  if (chat_template.ok()) return choose_chat_format(model_type, std::string_view{*chat_template});
  if (chat_template.status().code() != StatusCode::kNotFound) {
    return std::move(chat_template).status();
  }
  return choose_chat_format(model_type, tokenizer_config);
}

}  // namespace fathom
