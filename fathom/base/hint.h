// The second line of an error: what would help, a flag, a command, a fix. It is part of the message
// of a Status, behind what is wrong, so that whoever passes an error on passes its hint on:
//
//   no case is left by --filter 'zzz'
//   hint: `--list` shows what there is
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom {

/// Between what is wrong and the hint.
inline constexpr std::string_view kHintMark = "\nhint: ";

/// What is wrong alone.
inline std::string_view without_hint(std::string_view message) {
  return message.substr(0, message.find(kHintMark));
}

/// Both in a line, "what is wrong; what would help": for answers to programs and cells of a table.
inline std::string in_one_line(std::string_view message) {
  const std::string_view wrong = without_hint(message);
  if (wrong.size() == message.size()) return std::string(message);
  return str_cat(wrong, "; ", message.substr(wrong.size() + kHintMark.size()));
}

/// The error with `hint` behind it; as it is if it is none, or has a hint already.
inline Status with_hint(Status status,
                        std::string_view hint,
                        const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
  if (status.ok() || hint.empty() || status.message().find(kHintMark) != std::string::npos) {
    return status;
  }
  return Status::error(status.code(), str_cat(status.message(), kHintMark, hint), file, line);
}

/// The error with `hint` in place of what it may have: of whoever knows more about the thing than
/// the one that raised it.
inline Status with_hint_instead(Status status,
                                std::string_view hint,
                                const char* file = __builtin_FILE(),
                                int line = __builtin_LINE()) {
  if (status.ok()) return status;
  return Status::error(status.code(), str_cat(without_hint(status.message()), kHintMark, hint),
                       file, line);
}

}  // namespace fathom
