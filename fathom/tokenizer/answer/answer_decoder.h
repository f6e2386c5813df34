// Token ids of an answer to its parts: stream_decoder.h and answer_parser.h in a row.
#pragma once

#include <cstdint>

#include "fathom/tokenizer/answer/answer_parser.h"
#include "fathom/tokenizer/stream_decoder.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

/// Splits a stream of ids. A marker that the vocabulary holds as an added token counts only as that
/// token, so an answer that spells "</think>" letter by letter does not end its reasoning; other
/// markers are found in the text. Special tokens (the end of the answer) give nothing.
class AnswerDecoder {
 public:
  /// The tokenizer must outlive the decoder.
  AnswerDecoder(const Tokenizer& tokenizer, AnswerGrammar grammar);

  AnswerDelta push(int32_t id);

  /// Ends the answer. The decoder must not be used afterwards.
  AnswerDelta finish();

  const AnswerParser& parser() const { return parser_; }

 private:
  const Tokenizer* tokenizer_;
  StreamDecoder text_;
  AnswerParser parser_;
};

}  // namespace fathom
