// The inner loop of SHA-256: whole blocks of 64 bytes into the state of eight words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fathom {

using Sha256State = std::array<uint32_t, 8>;

/// FIPS 180-4, 6.2.2, as written there.
void sha256_blocks_portable(Sha256State& state, const uint8_t* data, size_t num_blocks);

/// The same with the SHA instructions of x86. Only where has_sha_instructions() says so.
void sha256_blocks_x86(Sha256State& state, const uint8_t* data, size_t num_blocks);

/// Whether this processor has SHA and SSE4.1.
bool has_sha_instructions();

/// The fastest one that works here.
void sha256_blocks(Sha256State& state, const uint8_t* data, size_t num_blocks);

}  // namespace fathom
