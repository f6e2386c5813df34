// Lines that a person types: with editing, history and pastes on a terminal, plain otherwise.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fathom/base/status.h"

namespace fathom::cli {

class LineEditor;  // of the editing library

struct TypedLine {
  std::string text{};        ///< without its end; with newlines within where they were pasted
  bool interrupted = false;  ///< Ctrl-C was pressed in place of Enter; the text is gone
};

class LineReader {
 public:
  /// Edits lines where standard input and output are terminals. Where no escape codes may be
  /// written (terminal_takes_codes), pastes are not told from typing.
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// Whether a person types.
  bool typed() const { return typed_; }

  /// The next line; nothing at the end of input. The prompt is shown where lines are edited.
  /// Ctrl-Z stops the program with the terminal as it was found. Errors: InvalidArgument for a line
  /// above kMaxInputBytes, Io.
  Result<std::optional<TypedLine>> next(const std::string& prompt);

  /// Adds to what the up key brings back.
  void remember(const std::string& text);

 private:
  Result<std::optional<TypedLine>> next_plain();

  bool typed_;
  std::unique_ptr<LineEditor> editor_;  // absent where lines are plain
};

}  // namespace fathom::cli
