#include "fathom/os/hmac.h"

#include <array>

namespace fathom {
namespace {

constexpr size_t kBlockBytes = 64;  // of SHA-256

std::string_view text_of(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

// H((K ^ opad) || H((K ^ ipad) || message)); a key longer than a block is hashed first.
Sha256Digest hmac_sha256(std::string_view key, std::string_view message) {
  constexpr uint8_t kInner = 0x36;
  constexpr uint8_t kOuter = 0x5c;
  const Sha256Digest hashed_key = sha256(key);
  if (key.size() > kBlockBytes) key = text_of(hashed_key);
  std::array<char, kBlockBytes> inner{};
  std::array<char, kBlockBytes> outer{};
  for (size_t i = 0; i < kBlockBytes; ++i) {
    const auto byte = static_cast<uint8_t>(i < key.size() ? key[i] : 0);
    inner[i] = static_cast<char>(byte ^ kInner);
    outer[i] = static_cast<char>(byte ^ kOuter);
  }
  const auto begin = [](const std::array<char, kBlockBytes>& pad) {
    return Sha256().update(std::string_view(pad.data(), pad.size()));
  };
  const Sha256Digest digest = begin(inner).update(message).finish();
  return begin(outer).update(text_of(digest)).finish();
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

}  // namespace fathom
