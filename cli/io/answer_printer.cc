#include "cli/io/answer_printer.h"

#include <cstdio>

#include "cli/io/terminal.h"

namespace fathom::cli {

void AnswerPrinter::print(std::string_view reasoning, std::string_view content) {
  show(reasoning, true);
  show(content, false);
  std::fflush(stdout);
}

void AnswerPrinter::end() {
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

void AnswerPrinter::set_dim(bool dim) {
  if (dim == dim_ || !stdout_is_terminal()) return;
  std::printf("%s", dim ? "\033[2m" : "\033[0m");
  dim_ = dim;
}

}  // namespace fathom::cli
