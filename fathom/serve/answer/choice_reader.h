// Reads the events of one choice into its parts. Text that may become a stop string is held back by
// the engine; here the tokens behind it are, so that markers, which are tokens, stay in step with
// the text that is certain.
//
//   tokens   t0 t1 t2 t3 ...      each adds bytes to the text
//   certain  |---------->         what the engine has handed out
//   parsed   t0 t1                whole tokens within it; at a stop string also a piece of t2
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fathom/serve/answer/reply_writer.h"
#include "fathom/serve/service/engine_service.h"
#include "fathom/tokenizer/answer/answer_decoder.h"
#include "fathom/tokenizer/stream_decoder.h"

namespace fathom::serve {

class ChoiceReader {
 public:
  /// `grammar` absent: all text is content. `holds_back`: the request has stop strings. The
  /// tokenizer outlives the reader; null is for plain text alone.
  ChoiceReader(const Tokenizer* tokenizer,
               const std::optional<AnswerGrammar>& grammar,
               const std::vector<ToolDefinition>& tools,
               bool holds_back);

  /// What an event adds; the last event settles what was held back.
  AnswerDelta read(const ServiceEvent& event);

  bool called_tools() const { return called_tools_; }

  int64_t reasoning_tokens() const { return reasoning_tokens_; }

  /// What the parser put right; null for plain text.
  const AnswerRepairs* repairs() const { return decoder_ ? &decoder_->repairs() : nullptr; }

 private:
  struct Held {
    int32_t token;
    std::string text;
  };

  void parse(int32_t token, AnswerDelta& out);
  void add(AnswerDelta news, AnswerDelta& out);
  void read_held(const ServiceEvent& event, AnswerDelta& out);

  std::unique_ptr<AnswerDecoder> decoder_;  // null: plain text
  bool holds_back_;
  std::optional<StreamDecoder> text_;  // as the engine decodes, to know what a token adds
  std::deque<Held> held_;              // tokens whose text is not certain yet
  std::string certain_;                // text that was handed out and belongs to held tokens
  bool called_tools_ = false;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace fathom::serve
