#include "cli/io/text_output.h"

#include <cstdio>

#include "fathom/os/atomic_file.h"

namespace fathom::cli {

Status emit(const std::string& text, const std::string& file) {
  if (!file.empty()) return write_file(file, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return {};
}

}  // namespace fathom::cli
