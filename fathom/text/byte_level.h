// The byte-level alphabet of GPT-2: each byte stands as one printable character in vocabulary
// files. 21-7E, A1-AC and AE-FF (hex) stand as the code point of the same number; the other 68
// bytes, in ascending order, as U+0100, U+0101, ... U+0143 (0x0A is U+010A, 0x20 is U+0120).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {

/// The character that stands for a byte.
char32_t byte_level_char(uint8_t byte);

/// The byte that a character stands for, or nothing if it is not of the alphabet.
std::optional<uint8_t> byte_level_byte(char32_t c);

/// The bytes that a vocabulary entry stands for: each character's byte, or, if any character is not
/// of the alphabet, the entry's own UTF-8 ("<｜User｜>"). `entry` is valid UTF-8.
std::string byte_level_decode(std::string_view entry);

/// Bytes written in the alphabet.
std::string byte_level_encode(std::string_view bytes);

}  // namespace fathom
