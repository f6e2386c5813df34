#include "cli/chat/answer_printer.h"

#include <cstdio>

#include "cli/io/terminal.h"

namespace fathom::cli {
namespace {

constexpr const char* kDim = "\033[2m";
constexpr const char* kPlain = "\033[0m";

}  // namespace

void AnswerPrinter::print(std::string_view reasoning,
                          std::string_view content,
                          int64_t reasoning_tokens) {
  if (view_ == ReasoningView::kShow) {
    show(reasoning, true);
  } else if (!reasoning.empty()) {
    fold(reasoning_tokens);
  }
  if (!content.empty()) unfold();
  show(content, false);
  std::fflush(stdout);
}

void AnswerPrinter::end() {
  unfold();
  set_dim(false);
  std::printf("\n");
  std::fflush(stdout);
}

void AnswerPrinter::show(std::string_view text, bool reasoning) {
  if (text.empty()) return;
  if (!reasoning && was_reasoning_) std::printf("\n");
  was_reasoning_ = reasoning;
  set_dim(reasoning);
  write_text(text);
}

// Each text covers the one before it, which is shorter.
void AnswerPrinter::fold(int64_t tokens) {
  folded_tokens_ = tokens;
  if (!stdout_is_terminal()) return;
  set_dim(true);
  std::printf("\r(reasoning: %lld tokens)", static_cast<long long>(tokens));
}

void AnswerPrinter::unfold() {
  if (folded_tokens_ == 0) return;
  set_dim(true);
  std::printf("%s(reasoned for %lld tokens)", stdout_is_terminal() ? "\r" : "",
              static_cast<long long>(folded_tokens_));
  folded_tokens_ = 0;
  was_reasoning_ = true;
}

void AnswerPrinter::set_dim(bool dim) {
  if (dim == dim_ || !stdout_takes_colors()) return;
  std::printf("%s", dim ? kDim : kPlain);
  dim_ = dim;
}

void print_remark(std::string_view text) {
  const bool dim = stdout_takes_colors();
  std::printf("%s", dim ? kDim : "");
  write_text(text);
  std::printf("%s\n", dim ? kPlain : "");
  std::fflush(stdout);
}

}  // namespace fathom::cli
