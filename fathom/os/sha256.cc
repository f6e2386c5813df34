#include "fathom/os/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "fathom/base/check.h"

namespace fathom {
namespace {

// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64
// primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// FIPS 180-4, 5.3.3: the same of the square roots of the first eight primes.
constexpr std::array<uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t load_big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void store_big_endian(uint32_t value, uint8_t* p) {
  for (int i = 0; i < 4; ++i)
    p[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

// FIPS 180-4, 6.2.2: one block of 64 bytes.
void compress(std::array<uint32_t, 8>& state, const uint8_t* block) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t)
    w[t] = load_big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t t1 = h + sum1 + choice + kRound[static_cast<size_t>(t)] + w[t];
    const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i)
    state[i] += add[i];
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
    compress(state_, block_.data());
    fill_ = 0;
  }
  for (; left >= block_.size(); left -= block_.size(), p += block_.size())
    compress(state_, p);
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
