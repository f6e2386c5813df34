// UTF-8: validation, decoding of code points, and an incremental decoder for text that arrives in
// pieces. Invalid input becomes U+FFFD, one for each maximal subpart (Unicode 15, 3.9, "U+FFFD
// Substitution of Maximal Subparts"), which is what Python's bytes.decode("utf-8", "replace") and
// Rust's from_utf8_lossy do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

/// One step of decoding.
struct Utf8Step {
  enum class Kind {
    kCodePoint,
    kInvalid,    ///< `length` bytes form one maximal subpart that no further byte can mend
    kTruncated,  ///< the text ends within a sequence that was valid so far
  };
  Kind kind;
  int length;           ///< bytes taken, 1 to 4
  char32_t code_point;  ///< U+FFFD unless kind is kCodePoint
};

/// Decodes the code point that starts at text[offset]; offset < text.size().
Utf8Step decode_utf8(std::string_view text, size_t offset);

/// The offset of the first byte that is not part of valid UTF-8, or nothing.
std::optional<size_t> find_invalid_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

/// Appends one code point, which must be a scalar value (no surrogate, at most U+10FFFF).
void append_utf8(std::string& out, char32_t code_point);

/// The text with each maximal invalid subpart replaced by U+FFFD.
std::string utf8_lossy(std::string_view text);

/// Decodes a stream of bytes. Bytes of an incomplete sequence wait for the rest, so the pieces of a
/// split stream add up to utf8_lossy of the whole.
class Utf8Decoder {
 public:
  /// Takes bytes and returns all text that is certain by now.
  std::string push(std::string_view bytes);

  /// Ends the stream: an incomplete sequence becomes U+FFFD. The decoder is empty afterwards.
  std::string flush();

  /// The bytes held back, at most three.
  std::string_view pending() const { return pending_; }

 private:
  std::string pending_;
};

}  // namespace fathom
