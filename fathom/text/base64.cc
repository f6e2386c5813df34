#include "fathom/text/base64.h"

#include <array>
#include <cstdint>

namespace fathom {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr int8_t kNoDigit = -1;

constexpr std::array<int8_t, 256> digit_values() {
  std::array<int8_t, 256> values{};
  values.fill(kNoDigit);
  for (size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
  return values;
}

constexpr std::array<int8_t, 256> kValues = digit_values();

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    uint32_t bits = 0;  // 24, the first byte on top
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (k < group.size() ? static_cast<unsigned char>(group[k]) : 0u);
    for (size_t k = 0; k < 4; ++k)
      text += k <= group.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    const std::string_view group = text.substr(i, 4);
    const bool is_last = i + 4 == text.size();
    const size_t num_digits = is_last ? 4 - (group[3] == '=') - (group[2] == '=') : 4;
    uint32_t bits = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int8_t value = kValues[static_cast<unsigned char>(group[k])];
      if (k < num_digits && value == kNoDigit) return {};
      if (k >= num_digits && group[k] != '=') return {};
      bits = bits << 6 | (k < num_digits ? static_cast<uint32_t>(value) : 0u);
    }
    for (size_t k = 0; k + 1 < num_digits; ++k)
      bytes += static_cast<char>(bits >> (16 - 8 * k) & 255);
    // Bits behind the last byte are zero.
    if ((bits & ((1u << 8 * (4 - num_digits)) - 1)) != 0) return {};
  }
  return bytes;
}

}  // namespace fathom
