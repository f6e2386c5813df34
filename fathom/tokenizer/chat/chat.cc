#include "fathom/tokenizer/chat/chat.h"

#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

// What the format has no place for is refused, not left out.
Status check_features(const ChatMessage& message, size_t i, const ChatFormat& format) {
  const ChatFeatures has = format.features();
  const auto refusal = [&](std::string_view what) {
    return invalid_argument(str_cat("messages[", i, "].", what, ", which the chat format ",
                                    format.name(), " does not have"));
  };
  if (message.role == ChatRole::kLatestReminder && !has.reminders) {
    return refusal("role is latest_reminder");
  }
  if (message.task != ChatTask::kNone && !has.tasks) return refusal("task is set");
  const bool has_format = message.response_format.kind != ResponseFormat::Kind::kText;
  if (message.tools.empty() && !has_format) return {};
  const std::string_view field = has_format ? "response_format" : "tools";
  if (!has.message_tools) {
    return refusal(str_cat(field, " is set for one message"));
  }
  if (message.role != ChatRole::kSystem && message.role != ChatRole::kDeveloper) {
    return invalid_argument(str_cat("messages[", i, "].", field,
                                    " is set, expected it only in system and developer messages"));
  }
  return {};
}

}  // namespace

std::string_view chat_role_name(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
    case ChatRole::kTool:
      return "tool";
    case ChatRole::kDeveloper:
      return "developer";
    case ChatRole::kLatestReminder:
      return "latest_reminder";
  }
  return "";
}

PromptText& PromptText::text(std::string_view text) {
  if (text.empty()) return *this;
  if (!segments_.empty() && segments_.back().kind == Kind::kText) {
    segments_.back().text += text;
  } else {
    segments_.push_back({Kind::kText, std::string{text}});
  }
  return *this;
}

PromptText& PromptText::control(std::string_view token) {
  segments_.push_back({Kind::kControl, std::string{token}});
  return *this;
}

PromptText& PromptText::sampled(const SampledCalls& calls) {
  segments_.push_back({Kind::kIds, calls.text, calls.ids});
  return *this;
}

PromptText& PromptText::marked(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size();
    std::string_view first;
    for (const std::string_view token : control::kAll) {
      const size_t at = text.find(token);
      if (at < begin) {
        begin = at;
        first = token;
      }
    }
    this->text(text.substr(0, begin));
    if (!first.empty()) control(first);
    text.remove_prefix(begin + first.size());
  }
  return *this;
}

std::string PromptText::str() const {
  std::string whole;
  for (const Segment& segment : segments_)
    whole += segment.text;
  return whole;
}

std::vector<int32_t> PromptText::encode(const Tokenizer& tokenizer) const {
  std::vector<int32_t> ids;
  // A control token without an id joins the text around it, as it would in the reference.
  std::string pending;
  const auto flush = [&] {
    const auto text_ids = tokenizer.encode(pending);
    ids.insert(ids.end(), text_ids.begin(), text_ids.end());
    pending.clear();
  };
  for (const Segment& segment : segments_) {
    if (segment.kind == Kind::kIds) {
      flush();
      ids.insert(ids.end(), segment.ids.begin(), segment.ids.end());
      continue;
    }
    const auto id =
        segment.kind == Kind::kControl ? tokenizer.token_to_id(segment.text) : std::nullopt;
    if (!id || !tokenizer.is_added(*id)) {
      pending += segment.text;
      continue;
    }
    flush();
    ids.push_back(*id);
  }
  flush();
  return ids;
}

Result<PromptText> ChatFormat::format(const ChatConversation& conversation,
                                      const ChatOptions& options) const {
  const auto& messages = conversation.messages;
  if (messages.empty()) return invalid_argument("messages is empty, expected at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.end == TurnEnd::kContinue &&
        (i + 1 != messages.size() || message.role != ChatRole::kAssistant)) {
      return invalid_argument(
          str_cat("messages[", i,
                  "].prefix is set, expected it only in the last message, of an assistant"));
    }
    if (!message.tool_calls.empty() && message.role != ChatRole::kAssistant) {
      return invalid_argument(str_cat(
          "messages[", i, "].tool_calls is set, expected it only in messages of an assistant"));
    }
    if (!message.tool_calls.empty() && message.end == TurnEnd::kContinue) {
      return invalid_argument(
          str_cat("messages[", i, "] has tool_calls and prefix, expected one of them"));
    }
    FATHOM_TRY(check_features(message, i, *this));
  }
  return render(conversation, options);
}

AnswerGrammar ChatFormat::answer_grammar_after(const ChatConversation&,
                                               const ChatOptions& options) const {
  return answer_grammar(options);
}

std::string joined_system_text(const ChatConversation& conversation) {
  std::string joined;
  bool is_first = true;
  for (const ChatMessage& message : conversation.messages) {
    if (message.role != ChatRole::kSystem && message.role != ChatRole::kDeveloper) continue;
    if (!is_first) joined += "\n\n";
    joined += message.content;
    is_first = false;
  }
  return joined;
}

}  // namespace fathom
