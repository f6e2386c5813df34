#include "fathom/tokenizer/answer/dsml/folded_markers.h"

#include <array>
#include <utility>

namespace fathom {
namespace {

struct Folded {
  AnswerMarker marker;
  char byte;
};

constexpr std::array<Folded, 3> kFolded = {{{AnswerMarker::kDsml, kFoldedDsml},
                                            {AnswerMarker::kEndThink, kFoldedEndThink},
                                            {AnswerMarker::kThink, kFoldedThink}}};

void append_text(std::string_view text, std::string& out) {
  for (const char c : text) {
    if (is_folded_marker(c)) {
      out += "\uFFFD";
    } else {
      out += c;
    }
  }
}

}  // namespace

std::string_view folded_marker_text(char marker) {
  for (const Folded& folded : kFolded) {
    if (folded.byte == marker) return answer_marker_text(folded.marker);
  }
  return {};
}

void MarkerFolder::push(std::string_view text, std::string& out) {
  pending_ += text;
  const std::string whole = std::exchange(pending_, {});
  std::string_view rest = whole;
  while (!rest.empty()) {
    // Both kinds of markers begin with one of these.
    const size_t at = std::min(rest.find_first_of("<\xEF"), rest.size());
    append_text(rest.substr(0, at), out);
    rest.remove_prefix(at);
    size_t taken = rest.empty() ? 0 : 1;
    for (const Folded& folded : kFolded) {
      if (!in_text_[static_cast<size_t>(folded.marker)]) continue;
      const std::string_view marker = answer_marker_text(folded.marker);
      if (rest.starts_with(marker)) {
        out += folded.byte;
        rest.remove_prefix(marker.size());
        taken = 0;
        break;
      }
      if (marker.starts_with(rest)) {
        pending_ = rest;
        return;
      }
    }
    append_text(rest.substr(0, taken), out);
    rest.remove_prefix(taken);
  }
}

void MarkerFolder::push_marker(AnswerMarker marker, std::string& out) {
  flush(out);
  for (const Folded& folded : kFolded) {
    if (folded.marker != marker) continue;
    out += folded.byte;
    return;
  }
  append_text(answer_marker_text(marker), out);
}

void MarkerFolder::flush(std::string& out) {
  append_text(std::exchange(pending_, {}), out);
}

}  // namespace fathom
