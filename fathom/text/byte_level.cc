#include "fathom/text/byte_level.h"

#include <array>

#include "fathom/text/utf8.h"

namespace fathom {
namespace {

constexpr char32_t kNumChars = 0x144;  // the last character is U+0143
constexpr int16_t kNoByte = -1;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> make_chars() {
  std::array<char32_t, 256> chars{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    chars[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return chars;
}

constexpr std::array<char32_t, 256> kChars = make_chars();

constexpr std::array<int16_t, kNumChars> make_bytes() {
  std::array<int16_t, kNumChars> bytes{};
  for (auto& byte : bytes)
    byte = kNoByte;
  for (int byte = 0; byte < 256; ++byte)
    bytes[kChars[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<int16_t, kNumChars> kBytes = make_bytes();

}  // namespace

char32_t byte_level_char(uint8_t byte) {
  return kChars[byte];
}

std::optional<uint8_t> byte_level_byte(char32_t c) {
  if (c >= kNumChars || kBytes[c] == kNoByte) return std::nullopt;
  return static_cast<uint8_t>(kBytes[c]);
}

std::string byte_level_decode(std::string_view entry) {
  std::string bytes;
  for (size_t offset = 0; offset < entry.size();) {
    const Utf8Step step = decode_utf8(entry, offset);
    const auto byte = byte_level_byte(step.code_point);
    if (!byte) return std::string{entry};
    bytes.push_back(static_cast<char>(*byte));
    offset += step.length;
  }
  return bytes;
}

std::string byte_level_encode(std::string_view bytes) {
  std::string entry;
  for (const char byte : bytes)
    append_utf8(entry, byte_level_char(static_cast<uint8_t>(byte)));
  return entry;
}

}  // namespace fathom
