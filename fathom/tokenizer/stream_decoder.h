// Ids to text as they come, in whole characters.
#pragma once

#include <cstdint>
#include <string>

#include "fathom/text/utf8.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

/// Decodes a stream of tokens. A character whose bytes have not all come waits; the pieces of a
/// stream add up to Tokenizer::decode of all ids.
class StreamDecoder {
 public:
  /// The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer,
                         SpecialTokens special_tokens = SpecialTokens::kKeep)
      : tokenizer_(&tokenizer), special_tokens_(special_tokens) {}

  /// Takes one id and returns the text that is certain by now; valid UTF-8.
  std::string push(int32_t id);

  /// Ends the stream: an incomplete character becomes U+FFFD. The decoder is empty afterwards.
  std::string flush() { return utf8_.flush(); }

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_tokens_;
  Utf8Decoder utf8_;
};

}  // namespace fathom
