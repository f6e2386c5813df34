// Where the tokenizers of tests/golden/tokenizer lie.
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/str_cat.h"

namespace fathom {

/// The directory of "tiny-v3" or "deepseek-v3". The latter is an archive of its own name there,
/// which CMake unpacks (FATHOM_UNPACKED_TOKENIZERS).
inline std::string golden_tokenizer(std::string_view name) {
  if (name == "deepseek-v3") return str_cat(FATHOM_UNPACKED_TOKENIZERS "/", name);
  return str_cat(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/", name);
}

}  // namespace fathom
