// Splits an answer into its parts while it is generated. Text that may become a stop string is held
// back by the engine; here the tokens behind it are, so that markers, which are tokens, stay in
// step with the text that is certain.
//
//   tokens   t0 t1 t2 t3 ...      each adds bytes to the text
//   certain  |---------->         what the engine has handed out
//   parsed   t0 t1                whole tokens within it; at a stop string also a piece of t2
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/tokenizer/answer/answer_decoder.h"
#include "fathom/tokenizer/stream_decoder.h"

namespace fathom {

/// What one step of the engine adds to an answer.
struct AnswerStep {
  int32_t token = -1;            ///< -1: none
  std::string_view text{};       ///< what became certain with it
  std::string_view stop_text{};  ///< the stop string that ended the answer
  bool last = false;
};

class AnswerStream {
 public:
  /// `holds_back`: the answer has stop strings. The tokenizer outlives the stream.
  AnswerStream(const Tokenizer& tokenizer,
               const AnswerGrammar& grammar,
               const std::vector<ToolDefinition>& tools,
               bool holds_back);

  /// What a step adds; the last one settles what was held back.
  AnswerDelta read(const AnswerStep& step);

  int64_t reasoning_tokens() const { return reasoning_tokens_; }

  const AnswerRepairs& repairs() const { return decoder_.repairs(); }

 private:
  struct Held {
    int32_t token;
    std::string text;
  };

  void parse(int32_t token, AnswerDelta& out);
  void read_held(const AnswerStep& step, AnswerDelta& out);

  AnswerDecoder decoder_;
  std::optional<StreamDecoder> text_;  // as the engine decodes, to know what a token adds
  std::deque<Held> held_;              // tokens whose text is not certain yet
  std::string certain_;                // text that was handed out and belongs to held tokens
  int64_t reasoning_tokens_ = 0;
};

}  // namespace fathom
