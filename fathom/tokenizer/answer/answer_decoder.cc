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

AnswerDecoder::AnswerDecoder(const Tokenizer& tokenizer,
                             AnswerGrammar grammar,
                             std::vector<ToolDefinition> tools)
    : tokenizer_(&tokenizer),
      text_(tokenizer, SpecialTokens::kSkip),
      parser_(std::in_place_type<AnswerParser>, grammar, markers_in_text(tokenizer)) {
  if (grammar.tool_calls == AnswerGrammar::ToolCalls::kDsml) {
    parser_.emplace<DsmlParser>(grammar, std::move(tools), markers_in_text(tokenizer));
  }
}

AnswerDelta AnswerDecoder::push(int32_t id) {
  const auto marker =
      tokenizer_->is_added(id) ? marker_of(tokenizer_->token_text(id)) : std::nullopt;
  return std::visit(
      [&](auto& parser) {
        if (!marker) return parser.push(text_.push(id));
        // A character that is cut off by a marker stays incomplete.
        AnswerDelta delta = parser.push(text_.flush());
        append(delta, parser.push_marker(*marker));
        return delta;
      },
      parser_);
}

AnswerDelta AnswerDecoder::push_text(std::string_view text) {
  return std::visit([&](auto& parser) { return parser.push(text); }, parser_);
}

AnswerDelta AnswerDecoder::finish() {
  return std::visit(
      [&](auto& parser) {
        AnswerDelta delta = parser.push(text_.flush());
        append(delta, parser.finish());
        return delta;
      },
      parser_);
}

bool AnswerDecoder::in_reasoning() const {
  return std::visit([](const auto& parser) { return parser.in_reasoning(); }, parser_);
}

const AnswerRepairs& AnswerDecoder::repairs() const {
  return std::visit([](const auto& parser) -> const AnswerRepairs& { return parser.repairs(); },
                    parser_);
}

}  // namespace fathom
