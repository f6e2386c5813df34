#include "fathom/os/sha256.h"

#include <algorithm>
#include <cstring>

#include "fathom/base/check.h"
#include "fathom/os/sha256_blocks.h"

namespace fathom {
namespace {

// FIPS 180-4, 5.3.3: the first 32 bits of the fractional parts of the square roots of the first
// eight primes.
constexpr std::array<uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void store_big_endian(uint32_t value, uint8_t* p) {
  for (int i = 0; i < 4; ++i)
    p[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

}  // namespace

Sha256::Sha256() : state_(kInitial) {}

Sha256& Sha256::update(std::span<const std::byte> data) {
  FATHOM_CHECK(fill_ < block_.size(), "a finished hash is updated");
  const auto* p = reinterpret_cast<const uint8_t*>(data.data());
  size_t left = data.size();
  total_bytes_ += left;
  if (fill_ > 0) {
    const size_t taken = std::min(left, block_.size() - fill_);
    if (taken > 0) std::memcpy(block_.data() + fill_, p, taken);
    fill_ += taken;
    p += taken;
    left -= taken;
    if (fill_ < block_.size()) return *this;
    sha256_blocks(state_, block_.data(), 1);
    fill_ = 0;
  }
  const size_t num_blocks = left / block_.size();
  sha256_blocks(state_, p, num_blocks);
  p += num_blocks * block_.size();
  left -= num_blocks * block_.size();
  if (left > 0) std::memcpy(block_.data(), p, left);
  fill_ = left;
  return *this;
}

Sha256& Sha256::update(std::string_view text) {
  return update(std::as_bytes(std::span(text)));
}

Sha256Digest Sha256::finish() {
  // FIPS 180-4, 5.1.1: a one bit, zeros, and the length in bits as 64 bits.
  const uint64_t bits = total_bytes_ * 8;
  std::array<std::byte, 72> padding{};
  padding[0] = std::byte{0x80};
  const size_t zeros_end = (fill_ < 56 ? 56 : 120) - fill_;
  for (size_t i = 0; i < 8; ++i) {
    padding[zeros_end + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  }
  update({padding.data(), zeros_end + 8});
  fill_ = block_.size();  // marks the end
  Sha256Digest digest;
  for (size_t i = 0; i < 8; ++i)
    store_big_endian(state_[i], digest.data() + 4 * i);
  return digest;
}

Sha256Digest sha256(std::span<const std::byte> data) {
  return Sha256().update(data).finish();
}

Sha256Digest sha256(std::string_view text) {
  return Sha256().update(text).finish();
}

std::string to_hex(const Sha256Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace fathom
