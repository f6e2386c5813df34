// A text file as the tokens that a model is run over: for perplexity, comparison, calibration.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fathom/base/status.h"

namespace fathom::cli {

/// Tokens that are read together, behind the one of the beginning.
inline constexpr int64_t kTextBlock = 511;

struct TextTokens {
  std::vector<int32_t> ids;
  int32_t bos = 0;         ///< the token of the beginning
  int64_t text_bytes = 0;  ///< of the file
};

/// Errors: those of load_tokenizer and read_text; Corrupt for an empty file and for a tokenizer
/// that names no token of the beginning.
Result<TextTokens> read_tokens(const std::string& directory, const std::string& text_file);

/// The ids in runs of kTextBlock, each behind `bos` where there is one.
std::vector<std::vector<int32_t>> in_blocks(std::span<const int32_t> ids,
                                            std::optional<int32_t> bos);

}  // namespace fathom::cli
