// An answer on standard output while it comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fathom::cli {

/// What is seen of a model's reasoning.
enum class ReasoningView {
  kShow,  ///< all of it
  kFold,  ///< "(reasoned for 12 tokens)", on a terminal with a count that grows
};

/// Reasoning stands before the content on lines of its own, dimmed where that may be.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(ReasoningView view) : view_(view) {}

  /// The next pieces; either may be empty. `reasoning_tokens` is the count up to here.
  void print(std::string_view reasoning, std::string_view content, int64_t reasoning_tokens);

  /// The end of the answer and of its line.
  void end();

 private:
  void show(std::string_view text, bool reasoning);
  void fold(int64_t tokens);
  void unfold();
  void set_dim(bool dim);

  ReasoningView view_;
  bool dim_ = false;
  bool was_reasoning_ = false;
  int64_t folded_tokens_ = 0;
};

/// A remark between answers, dimmed where that may be, on a line of its own.
void print_remark(std::string_view text);

}  // namespace fathom::cli
