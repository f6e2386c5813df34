// An answer on standard output while it comes.
#pragma once

#include <string_view>

namespace fathom::cli {

/// Reasoning stands before the content on lines of its own, dimmed where the terminal can do that.
class AnswerPrinter {
 public:
  /// The next pieces; either may be empty.
  void print(std::string_view reasoning, std::string_view content);

  /// The end of the answer and of its line.
  void end();

 private:
  void show(std::string_view text, bool reasoning);
  void set_dim(bool dim);

  bool dim_ = false;
  bool was_reasoning_ = false;
};

}  // namespace fathom::cli
