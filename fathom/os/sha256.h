// SHA-256 (FIPS 180-4), for checksums of written files and for keys of the prefix cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fathom {

using Sha256Digest = std::array<uint8_t, 32>;

/// Hashes a message that arrives in pieces; the pieces do not matter, only their concatenation.
/// Copying copies the state, so a common prefix is hashed once.
class Sha256 {
 public:
  Sha256();

  Sha256& update(std::span<const std::byte> data);
  Sha256& update(std::string_view text);

  /// The digest of everything so far. The object may not be updated afterwards.
  Sha256Digest finish();

 private:
  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> block_{};
  size_t fill_ = 0;           // bytes waiting in block_
  uint64_t total_bytes_ = 0;  // of the whole message
};

Sha256Digest sha256(std::span<const std::byte> data);
Sha256Digest sha256(std::string_view text);

/// 64 lower-case hexadecimal digits.
std::string to_hex(const Sha256Digest& digest);

}  // namespace fathom
