#include "fathom/tokenizer/chat/chat_formats.h"

#include <array>

#include "fathom/os/file.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

constexpr int64_t kMaxFileBytes = 4ll << 20;

Status refusal(std::string_view why) {
  return unsupported(
      str_cat(why, "\nhint: name one with --chat-format (", chat_format_names(), ")"));
}

bool holds(std::string_view text, std::string_view word) {
  return text.find(word) != text.npos;
}

bool is_v4(std::string_view model_type) {
  return model_type == "deepseek_v4";
}

// The name of V3.2 stands for V3.2-Exp too, which has a template of its own.
bool is_v32(std::string_view model_type) {
  return model_type == "deepseek_v32";
}

Result<const ChatFormat*> choose_by_encoder(std::string_view encoder) {
  // V4.1 has another form of turns and of tags.
  if (!holds(encoder, "<｜System｜>") && holds(encoder, control::kDsml)) {
    if (holds(encoder, "function_calls")) return &chat_v32();
    if (holds(encoder, "tool_calls")) {
      return holds(encoder, "Beyond maximum") ? &chat_v4_0731() : &chat_v4();
    }
  }
  return refusal("the encoder in encoding/ of the checkpoint is none of the known ones");
}

Result<const ChatFormat*> choose_by_family(const ChatEvidence& evidence) {
  if (is_v4(evidence.model_type)) return evidence.has_dspark ? &chat_v4_0731() : &chat_v4();
  if (is_v32(evidence.model_type)) return &chat_v32();
  if (evidence.chat_template.empty()) {
    return refusal("the checkpoint has no chat template, so its chat format is not known");
  }
  const std::string_view type = evidence.model_type;
  return refusal(str_cat("the chat template of this ", type.empty() ? "checkpoint" : type,
                         " is none of the known ones"));
}

// A file that may be missing.
Result<std::string> read_optional(const std::string& path) {
  Result<std::string> text = read_file(path, kMaxFileBytes);
  if (!text.ok() && text.status().code() == StatusCode::kNotFound) return std::string{};
  return text;
}

Result<bool> has_dspark_keys(const std::string& dir) {
  FATHOM_ASSIGN(const std::string text, read_optional(join_path(dir, "config.json")));
  if (text.empty()) return false;
  FATHOM_ASSIGN(const Json config, parse_json(text, JsonLimits{}, join_path(dir, "config.json")));
  if (!config.is_object()) return false;
  for (const auto& [key, value] : config.members()) {
    if (key.starts_with("dspark_")) return true;
  }
  return false;
}

}  // namespace

std::span<const ChatFormat* const> chat_formats() {
  static const std::array<const ChatFormat*, 8> formats = {&chat_v2(), &chat_v25(),    &chat_v3(),
                                                           &chat_r1(), &chat_v31(),    &chat_v32(),
                                                           &chat_v4(), &chat_v4_0731()};
  return formats;
}

std::string chat_format_names() {
  std::string names;
  for (const ChatFormat* format : chat_formats())
    names += str_cat(names.empty() ? "" : ", ", format->name());
  return names;
}

Result<const ChatFormat*> find_chat_format(std::string_view name) {
  for (const ChatFormat* format : chat_formats()) {
    if (format->name() == name) return format;
  }
  return invalid_argument(
      str_cat("chat format \"", name, "\" is not known, expected one of ", chat_format_names()));
}

Result<const ChatFormat*> choose_chat_format(const ChatEvidence& evidence) {
  if (!evidence.encoder.empty()) return choose_by_encoder(evidence.encoder);
  const std::string_view chat_template = evidence.chat_template;
  const bool has_turns =
      holds(chat_template, control::kUser) && holds(chat_template, control::kAssistant);
  const bool has_reasoning = holds(chat_template, control::kEndThink);
  // Templates that others wrote for V3.2 and later say no more than the family does. A model with
  // V4's layers that was trained on plain turns has a template without reasoning, which every
  // prompt of V4 has.
  const bool plain_turns = has_turns && !has_reasoning;
  if ((is_v4(evidence.model_type) && !plain_turns) || holds(chat_template, control::kDsml)) {
    return choose_by_family(evidence);
  }
  if (has_turns) {
    if (has_reasoning) return holds(chat_template, "thinking") ? &chat_v31() : &chat_r1();
    // The templates of V2.5 and V3 are the same.
    return evidence.model_type == "deepseek_v2" ? &chat_v25() : &chat_v3();
  }
  if (holds(chat_template, "'User: '") && holds(chat_template, "'Assistant: '")) return &chat_v2();
  return choose_by_family(evidence);
}

Result<std::string> chat_template_of(const Json& tokenizer_config) {
  const Json* chat_template = tokenizer_config.find("chat_template");
  if (chat_template == nullptr || chat_template->is_null()) return std::string{};
  if (chat_template->is_string()) return chat_template->as_string();
  if (chat_template->is_array()) {
    for (const Json& entry : chat_template->items()) {
      const Json* name = entry.find("name");
      const Json* text = entry.find("template");
      const bool is_default =
          name != nullptr && name->is_string() && name->as_string() == "default";
      if (is_default && text != nullptr && text->is_string()) return text->as_string();
    }
  }
  return refusal(str_cat("chat_template in tokenizer_config.json is ", chat_template->kind_name(),
                         " without a template named default"));
}

Result<const ChatFormat*> choose_chat_format_of_directory(std::string_view model_type,
                                                          const std::string& dir,
                                                          const Json& tokenizer_config) {
  const std::string encoders = join_path(dir, "encoding");
  FATHOM_ASSIGN(std::string encoder, read_optional(join_path(encoders, "encoding_dsv4.py")));
  if (encoder.empty()) {
    FATHOM_ASSIGN(encoder, read_optional(join_path(encoders, "encoding_dsv32.py")));
  }
  if (!encoder.empty()) return choose_chat_format({.encoder = encoder});
  FATHOM_ASSIGN(std::string chat_template, read_optional(join_path(dir, "chat_template.jinja")));
  if (chat_template.empty()) {
    FATHOM_ASSIGN(chat_template, chat_template_of(tokenizer_config));
  }
  ChatEvidence evidence{.model_type = model_type, .chat_template = chat_template};
  if (is_v4(model_type)) {
    FATHOM_ASSIGN(evidence.has_dspark, has_dspark_keys(dir));
  }
  return choose_chat_format(evidence);
}

}  // namespace fathom
