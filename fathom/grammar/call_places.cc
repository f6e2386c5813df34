#include "fathom/grammar/call_places.h"

namespace fathom {

using Form = AnswerGrammar::ToolCalls;
using Phase = CallPlace::Phase;

void CallPlaces::advance(CallPlace& place, int32_t token, std::string_view bytes) const {
  if (const auto marker = markers_.marker_of(token)) {
    take_marker(place, *marker);
    return;
  }
  for (const char c : bytes) {
    take_byte(place, c);
    const AnswerMarker awaited = place.phase == Phase::kContent ? opening_ : border_;
    if (markers_.id(awaited)) continue;  // it comes as a token
    const std::string_view word = answer_marker_text(awaited);
    place.spelled = spelled_bytes(word, place.spelled, c);
    if (place.spelled == word.size()) take_marker(place, awaited);
  }
}

void CallPlaces::take_marker(CallPlace& place, AnswerMarker marker) const {
  place.spelled = 0;
  if (marker == AnswerMarker::kDsml) {
    place.phase = Phase::kTag;
    place.first = '\0';
    place.in_string = false;
  } else if (marker == AnswerMarker::kSep) {
    place.phase = form_ == Form::kFencedJson ? Phase::kFenceLines : Phase::kJson;
    place.lines = 0;
    place.depth = 0;
    place.in_string = place.is_escaped = false;
  } else {
    place.phase = Phase::kFrame;
  }
}

void CallPlaces::take_byte(CallPlace& place, char c) const {
  // A tag is an end by the last "/" before its marker, which may itself be text.
  const bool may_be_marker = place.spelled != 0 || c == answer_marker_text(border_).front();
  if (!may_be_marker && place.phase != Phase::kTag) place.is_end_tag = c == '/';
  switch (place.phase) {
    case Phase::kContent:
    case Phase::kFrame:
    case Phase::kValue:
      return;
    case Phase::kFenceLines:
      if (c == '\n' && ++place.lines == 2) place.phase = Phase::kJson;
      return;
    case Phase::kJson:
      return take_json(place, c);
    case Phase::kTag:
      return take_tag(place, c);
  }
}

void CallPlaces::take_json(CallPlace& place, char c) {
  if (place.is_escaped) {
    place.is_escaped = false;
  } else if (place.in_string) {
    place.is_escaped = c == '\\';
    place.in_string = c != '"';
  } else if (c == '"') {
    place.in_string = true;
  } else if (c == '{' || c == '[') {
    ++place.depth;
  } else if ((c == '}' || c == ']') && --place.depth == 0) {
    place.phase = Phase::kFrame;
  }
}

void CallPlaces::take_tag(CallPlace& place, char c) {
  if (place.first == '\0') place.first = c;
  if (c == '"') place.in_string = !place.in_string;
  if (c != '>' || place.in_string) return;
  place.phase = place.first == 'p' && !place.is_end_tag ? Phase::kValue : Phase::kFrame;
  place.is_end_tag = false;
}

}  // namespace fathom
