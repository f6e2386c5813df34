#include "fathom/text/terminal_text.h"

#include "fathom/text/utf8.h"

namespace fathom {
namespace {

bool is_shown(const Utf8Step& step) {
  const char32_t c = step.code_point;
  const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0);
  return step.kind == Utf8Step::Kind::kCodePoint && (!control || c == '\n' || c == '\t');
}

void append_escaped(std::string& out, std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text, at);
    const std::string_view bytes = text.substr(at, static_cast<size_t>(step.length));
    if (is_shown(step)) {
      out += bytes;
    } else {
      append_escaped(out, bytes);
    }
    at += bytes.size();
  }
  return out;
}

}  // namespace fathom
