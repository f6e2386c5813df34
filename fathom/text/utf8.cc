#include "fathom/text/utf8.h"

#include <cstring>

#include "fathom/base/check.h"

namespace fathom {
namespace {

unsigned byte_at(std::string_view text, size_t i) {
  return static_cast<unsigned char>(text[i]);
}

bool is_continuation(unsigned byte) {
  return (byte & 0xC0u) == 0x80u;
}

// The range of the second byte depends on the first (Unicode 15, table 3-7); it shuts out overlong
// forms, surrogates and values above U+10FFFF.
bool second_byte_fits(unsigned first, unsigned second) {
  switch (first) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return is_continuation(second);
  }
}

// Bytes of the sequence that `first` begins, or 0 if none begins with it.
int sequence_length(unsigned first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first <= 0xF4 ? 4 : 0;
}

size_t ascii_prefix(std::string_view text, size_t offset) {
  while (offset + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + offset, sizeof word);
    if ((word & 0x8080808080808080u) != 0) break;
    offset += 8;
  }
  while (offset < text.size() && byte_at(text, offset) < 0x80)
    ++offset;
  return offset;
}

}  // namespace

Utf8Step decode_utf8(std::string_view text, size_t offset) {
  FATHOM_DCHECK(offset < text.size());
  const unsigned first = byte_at(text, offset);
  if (first < 0x80) return {Utf8Step::Kind::kCodePoint, 1, first};
  const int length = sequence_length(first);
  if (length == 0) return {Utf8Step::Kind::kInvalid, 1, kReplacementCharacter};
  char32_t value = first & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    if (offset + i >= text.size()) return {Utf8Step::Kind::kTruncated, i, kReplacementCharacter};
    const unsigned next = byte_at(text, offset + i);
    const bool fits = i == 1 ? second_byte_fits(first, next) : is_continuation(next);
    if (!fits) return {Utf8Step::Kind::kInvalid, i, kReplacementCharacter};
    value = value << 6 | (next & 0x3Fu);
  }
  return {Utf8Step::Kind::kCodePoint, length, value};
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t offset = ascii_prefix(text, 0); offset < text.size();) {
    const Utf8Step step = decode_utf8(text, offset);
    if (step.kind != Utf8Step::Kind::kCodePoint) return offset;
    offset = ascii_prefix(text, offset + step.length);
  }
  return std::nullopt;
}

bool is_valid_utf8(std::string_view text) {
  return !find_invalid_utf8(text);
}

void append_utf8(std::string& out, char32_t c) {
  FATHOM_DCHECK(c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF));
  const auto tail = [&](int shift) { return static_cast<char>(0x80u | (c >> shift & 0x3Fu)); };
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0u | c >> 6));
    out.push_back(tail(0));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0u | c >> 12));
    out.push_back(tail(6));
    out.push_back(tail(0));
  } else {
    out.push_back(static_cast<char>(0xF0u | c >> 18));
    out.push_back(tail(12));
    out.push_back(tail(6));
    out.push_back(tail(0));
  }
}

std::string utf8_lossy(std::string_view text) {
  Utf8Decoder decoder;
  std::string out = decoder.push(text);
  out += decoder.flush();
  return out;
}

std::string Utf8Decoder::push(std::string_view bytes) {
  std::string joined;
  if (!pending_.empty()) {
    joined = std::move(pending_);
    joined.append(bytes);
    bytes = joined;
    pending_.clear();
  }
  std::string out;
  out.reserve(bytes.size());
  for (size_t offset = 0; offset < bytes.size();) {
    const size_t ascii_end = ascii_prefix(bytes, offset);
    out.append(bytes.substr(offset, ascii_end - offset));
    offset = ascii_end;
    if (offset == bytes.size()) break;
    const Utf8Step step = decode_utf8(bytes, offset);
    if (step.kind == Utf8Step::Kind::kTruncated) {
      pending_ = bytes.substr(offset);
      break;
    }
    append_utf8(out, step.code_point);
    offset += step.length;
  }
  return out;
}

std::string Utf8Decoder::flush() {
  if (pending_.empty()) return {};
  pending_.clear();
  std::string out;
  append_utf8(out, kReplacementCharacter);
  return out;
}

}  // namespace fathom
