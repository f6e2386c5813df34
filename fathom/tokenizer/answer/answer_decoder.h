// Token ids of an answer to its parts: stream_decoder.h and answer_parser.h in a row.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "fathom/tokenizer/answer/answer_parser.h"
#include "fathom/tokenizer/answer/dsml/dsml_parser.h"
#include "fathom/tokenizer/stream_decoder.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

/// Splits a stream of ids. A marker that the vocabulary holds as an added token counts only as that
/// token, so an answer that spells "</think>" letter by letter does not end its reasoning; other
/// markers are found in the text. Special tokens (the end of the answer) give nothing.
class AnswerDecoder {
 public:
  /// The tokenizer must outlive the decoder. `tools`: those the model was told of; DSML reads types
  /// of parameters from them.
  AnswerDecoder(const Tokenizer& tokenizer,
                AnswerGrammar grammar,
                std::vector<ToolDefinition> tools = {});

  AnswerDelta push(int32_t id);

  /// Takes text that is no whole token: what a stop string left of the last one.
  AnswerDelta push_text(std::string_view text);

  /// Ends the answer. The decoder must not be used afterwards.
  AnswerDelta finish();

  /// Whether the answer is within its reasoning now.
  bool in_reasoning() const;

  const AnswerRepairs& repairs() const;

 private:
  using Parser = std::variant<AnswerParser, DsmlParser>;

  const Tokenizer* tokenizer_;
  StreamDecoder text_;
  Parser parser_;
};

}  // namespace fathom
