// Text in which each marker of V3.2 and V4 is one byte, so that tags are matched alike whether
// their markers came as tokens or as text.
#pragma once

#include <string>
#include <string_view>

#include "fathom/tokenizer/answer/answer_parser.h"

namespace fathom {

// Bytes that UTF-8 never has.
inline constexpr char kFoldedDsml = '\xFF';
inline constexpr char kFoldedEndThink = '\xFE';
inline constexpr char kFoldedThink = '\xFD';

inline bool is_folded_marker(char c) {
  return static_cast<unsigned char>(c) >= 0xFD;
}

/// The text of a folded marker.
std::string_view folded_marker_text(char marker);

/// Folds a stream. Bytes of the text that would look like folded markers become U+FFFD.
class MarkerFolder {
 public:
  /// `in_text`: the markers to look for in text.
  explicit MarkerFolder(AnswerMarkerSet in_text) : in_text_(in_text) {}

  /// Appends to `out` what is certain by now; what may become a marker waits.
  void push(std::string_view text, std::string& out);

  /// Appends what waits, as text, and then the marker; one of another form is text.
  void push_marker(AnswerMarker marker, std::string& out);

  /// Appends what waits, as text.
  void flush(std::string& out);

 private:
  AnswerMarkerSet in_text_;
  std::string pending_;
};

}  // namespace fathom
