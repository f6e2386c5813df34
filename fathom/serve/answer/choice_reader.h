// Reads the events of one choice into its parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fathom/serve/answer/reply_writer.h"
#include "fathom/serve/service/engine_service.h"
#include "fathom/tokenizer/answer/answer_stream.h"

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

  int64_t reasoning_tokens() const { return stream_ ? stream_->reasoning_tokens() : 0; }

  /// What the parser put right; null for plain text.
  const AnswerRepairs* repairs() const { return stream_ ? &stream_->repairs() : nullptr; }

 private:
  std::unique_ptr<AnswerStream> stream_;  // null: plain text
  bool called_tools_ = false;
};

}  // namespace fathom::serve
