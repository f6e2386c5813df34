// Where in a section of tool calls an answer is: in its frame or in an argument.
//
// Follows what the grammar has let through, so it needs to tell no right answers from wrong ones.
#pragma once

#include <cstdint>
#include <string_view>

#include "fathom/grammar/call_markers.h"
#include "fathom/runtime/sample/token_constraint.h"

namespace fathom {

/// The state between two tokens. A plain value, copied for every token that may be taken back.
struct CallPlace {
  enum class Phase : uint8_t {
    kContent,  ///< no marker has come, and what comes may be content in place of calls
    kFrame,
    kFenceLines,  ///< fenced: behind the separator, up to the second line end
    kJson,        ///< an argument as JSON
    kTag,         ///< DSML: behind ｜DSML｜, up to the end of the tag
    kValue,       ///< DSML: the value of a parameter
  };
  Phase phase = Phase::kFrame;
  uint8_t lines = 0;    ///< of kFenceLines
  uint8_t spelled = 0;  ///< bytes of a marker that is spelled as text
  char first = '\0';    ///< of the name of a tag
  bool in_string = false;
  bool is_escaped = false;
  bool is_end_tag = false;
  int32_t depth = 0;  ///< of JSON
};

class CallPlaces {
 public:
  CallPlaces(AnswerGrammar::ToolCalls form, const CallMarkers& markers)
      : form_(form),
        markers_(markers),
        border_(form == AnswerGrammar::ToolCalls::kDsml ? AnswerMarker::kDsml : AnswerMarker::kSep),
        opening_(form == AnswerGrammar::ToolCalls::kDsml ? AnswerMarker::kDsml
                                                         : AnswerMarker::kCallsBegin) {}

  /// Takes the next token.
  void advance(CallPlace& place, int32_t token, std::string_view bytes) const;

  static ConstraintPlace place_of(const CallPlace& place) {
    const bool is_payload = place.phase == CallPlace::Phase::kContent ||
                            place.phase == CallPlace::Phase::kJson ||
                            place.phase == CallPlace::Phase::kValue;
    return is_payload ? ConstraintPlace::kPayload : ConstraintPlace::kStructure;
  }

 private:
  void take_marker(CallPlace& place, AnswerMarker marker) const;
  void take_byte(CallPlace& place, char c) const;
  static void take_json(CallPlace& place, char c);
  static void take_tag(CallPlace& place, char c);

  AnswerGrammar::ToolCalls form_;
  CallMarkers markers_;
  AnswerMarker border_;   // the marker that payload begins (JSON) or ends (DSML) behind
  AnswerMarker opening_;  // the one that a section begins with
};

/// How many bytes of `word` have come, behind `matched` of them and one more byte. For words that
/// go on with what they begin with at their end alone.
inline uint8_t spelled_bytes(std::string_view word, uint8_t matched, char c) {
  if (matched < word.size() && word[matched] == c) return static_cast<uint8_t>(matched + 1);
  return word[0] == c ? 1 : 0;
}

}  // namespace fathom
