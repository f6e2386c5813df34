// The markers of tool calls as one vocabulary has them: as tokens of their own, or as text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "fathom/tokenizer/answer/answer_parser.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {

class CallMarkers {
 public:
  CallMarkers() = default;

  explicit CallMarkers(const Tokenizer& tokenizer) {
    for (int i = 0; i < kNumAnswerMarkers; ++i) {
      const auto id = tokenizer.token_to_id(answer_marker_text(static_cast<AnswerMarker>(i)));
      if (id && tokenizer.is_added(*id)) ids_[i] = id;
    }
  }

  /// The token of a marker; nothing where it is spelled as text.
  std::optional<int32_t> id(AnswerMarker marker) const { return ids_[static_cast<size_t>(marker)]; }

  /// The marker that a token is.
  std::optional<AnswerMarker> marker_of(int32_t token) const {
    for (int i = 0; i < kNumAnswerMarkers; ++i) {
      if (ids_[i] == token) return static_cast<AnswerMarker>(i);
    }
    return std::nullopt;
  }

  /// Whether a token may stand within calls. <think> and </think> never do.
  static bool belongs_to_calls(AnswerMarker marker) {
    return marker != AnswerMarker::kThink && marker != AnswerMarker::kEndThink;
  }

 private:
  std::array<std::optional<int32_t>, kNumAnswerMarkers> ids_{};
};

}  // namespace fathom
