// Lines of a chat put together to messages and commands. The same whether they are typed, pasted or
// come from a file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fathom::cli {

struct ChatInput {
  enum class Kind { kMessage, kCommand };
  Kind kind = Kind::kMessage;
  std::string text{};  ///< of a command with its slash
};

/// What a line means:
///
///   text            a message; text with newlines in it, which was pasted, is one as it stands
///   text\           the message goes on in the next line
///   """             begins a message of several lines, as it stands; """ at the end of one ends it
///   /name ...       a command; pasted lines are one only where the name is that of a command
///   //text          the message "/text"
class InputLines {
 public:
  /// The next line. Nothing while a message goes on.
  std::optional<ChatInput> add(std::string_view line);

  /// Whether a message has begun and goes on.
  bool open() const { return state_ != State::kFresh; }

  /// Whether it is one between """ and """.
  bool in_block() const { return state_ == State::kBlock; }

  /// Forgets what has begun.
  void drop();

  /// At the end of the input: what `\` left open. Nothing of a block, which lacks its end.
  std::optional<ChatInput> finish();

 private:
  enum class State { kFresh, kContinued, kBlock };
  enum class Origin { kTyped, kPasted };
  std::optional<ChatInput> add_to_block(std::string_view line);
  ChatInput take(Origin origin);

  State state_ = State::kFresh;
  std::string text_;
};

}  // namespace fathom::cli
