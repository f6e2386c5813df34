#include "cli/chat/input_lines.h"

#include <utility>

#include "cli/chat/chat_command.h"

namespace fathom::cli {
namespace {

constexpr std::string_view kQuotes = "\"\"\"";

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

}  // namespace

std::optional<ChatInput> InputLines::add(std::string_view line) {
  if (state_ == State::kBlock) return add_to_block(line);
  if (state_ == State::kFresh) {
    if (line.starts_with(kQuotes)) {
      state_ = State::kBlock;
      line.remove_prefix(kQuotes.size());
      if (without_blanks_behind(line).empty()) return std::nullopt;
      return add_to_block(line);
    }
    if (line.find('\n') != line.npos) {
      text_ = line;
      return take(Origin::kPasted);
    }
  }
  if (line.ends_with('\\')) {
    state_ = State::kContinued;
    text_ += line.substr(0, line.size() - 1);
    text_ += '\n';
    return std::nullopt;
  }
  text_ += line;
  return take(Origin::kTyped);
}

std::optional<ChatInput> InputLines::add_to_block(std::string_view line) {
  const std::string_view end = without_blanks_behind(line);
  if (!end.ends_with(kQuotes)) {
    text_ += line;
    text_ += '\n';
    return std::nullopt;
  }
  text_ += end.substr(0, end.size() - kQuotes.size());
  if (text_.ends_with('\n')) text_.pop_back();  // """ on a line of its own
  state_ = State::kFresh;
  return ChatInput{.text = std::exchange(text_, {})};
}

ChatInput InputLines::take(Origin origin) {
  state_ = State::kFresh;
  std::string text = std::exchange(text_, {});
  const bool slash = text.starts_with('/');
  if (slash && (origin == Origin::kTyped ? !text.starts_with("//") : names_chat_command(text))) {
    return {.kind = ChatInput::Kind::kCommand, .text = std::move(text)};
  }
  if (slash && origin == Origin::kTyped) text.erase(0, 1);
  return {.text = std::move(text)};
}

void InputLines::drop() {
  state_ = State::kFresh;
  text_.clear();
}

std::optional<ChatInput> InputLines::finish() {
  if (state_ != State::kContinued) return std::nullopt;
  text_.pop_back();  // the newline that waited for a line
  return take(Origin::kTyped);
}

}  // namespace fathom::cli
