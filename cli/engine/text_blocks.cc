#include "cli/engine/text_blocks.h"

#include <algorithm>

#include "cli/engine/model_setup.h"
#include "cli/io/text_input.h"

namespace fathom::cli {

Result<TextTokens> read_tokens(const std::string& directory, const std::string& text_file) {
  FATHOM_ASSIGN(const Tokenizer tokenizer, load_tokenizer(directory));
  FATHOM_ASSIGN(const std::string text, read_text(text_file));
  if (text.empty()) return corrupt(str_cat(text_file, ": is 0 bytes long, expected some text"));
  if (!tokenizer.bos_id()) return corrupt("the tokenizer names no token of the beginning");
  return TextTokens{.ids = tokenizer.encode(text),
                    .bos = *tokenizer.bos_id(),
                    .text_bytes = static_cast<int64_t>(text.size())};
}

std::vector<std::vector<int32_t>> in_blocks(std::span<const int32_t> ids,
                                            std::optional<int32_t> bos) {
  std::vector<std::vector<int32_t>> blocks;
  for (size_t at = 0; at < ids.size(); at += kTextBlock) {
    std::vector<int32_t>& block = blocks.emplace_back();
    if (bos) block.push_back(*bos);
    const auto run = ids.subspan(at, std::min<size_t>(kTextBlock, ids.size() - at));
    block.insert(block.end(), run.begin(), run.end());
  }
  return blocks;
}

}  // namespace fathom::cli
