#include "fathom/tokenizer/answer/answer_decoder.h"

#include <iterator>
#include <optional>

namespace fathom {
namespace {

AnswerMarkerSet markers_in_text(const Tokenizer& tokenizer) {
  AnswerMarkerSet in_text;
  for (int i = 0; i < kNumAnswerMarkers; ++i) {
    const auto id = tokenizer.token_to_id(answer_marker_text(static_cast<AnswerMarker>(i)));
    in_text[i] = !id || !tokenizer.is_added(*id);
  }
  return in_text;
}

std::optional<AnswerMarker> marker_of(std::string_view token) {
  for (int i = 0; i < kNumAnswerMarkers; ++i) {
    const auto marker = static_cast<AnswerMarker>(i);
    if (answer_marker_text(marker) == token) return marker;
  }
  return std::nullopt;
}

// Adds the news of a later step to those of an earlier one.
void append(AnswerDelta& delta, AnswerDelta later) {
  delta.reasoning += later.reasoning;
  delta.content += later.content;
  for (auto& call : later.tool_calls)
    delta.tool_calls.push_back(std::move(call));
}

}  // namespace

AnswerDecoder::AnswerDecoder(const Tokenizer& tokenizer, AnswerGrammar grammar)
    : tokenizer_(&tokenizer),
      text_(tokenizer, SpecialTokens::kSkip),
      parser_(grammar, markers_in_text(tokenizer)) {}

AnswerDelta AnswerDecoder::push(int32_t id) {
  const bool is_marker = tokenizer_->is_added(id) && !tokenizer_->is_special(id);
  const auto marker = is_marker ? marker_of(tokenizer_->token_text(id)) : std::nullopt;
  if (!marker) return parser_.push(text_.push(id));
  // A character that is cut off by a marker stays incomplete.
  AnswerDelta delta = parser_.push(text_.flush());
  append(delta, parser_.push_marker(*marker));
  return delta;
}

AnswerDelta AnswerDecoder::finish() {
  AnswerDelta delta = parser_.push(text_.flush());
  append(delta, parser_.finish());
  return delta;
}

}  // namespace fathom
