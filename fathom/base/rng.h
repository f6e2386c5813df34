// Random numbers that depend on where they are used, not on what was drawn before.
//
// Philox4x32-10 maps a 64-bit key and a 128-bit counter to 128 random bits. A stream is named by
// (seed, stream), and its n-th word can be computed directly, so every thread, request and token
// position has its own numbers whatever the batch or the machine. The integer words and the uniform
// floats have the same bits on CPU and GPU; the normal floats agree to the accuracy of logf, sqrtf
// and cosf there.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once

#include <cstdint>

#include "fathom/base/host_device.h"

namespace fathom {

/// Four 32-bit words: a Philox counter, or the random words made from it.
struct PhiloxBlock {
  uint32_t word[4];

  friend constexpr bool operator==(const PhiloxBlock&, const PhiloxBlock&) = default;
};

/// Philox4x32 with ten rounds. Key words are (low, high) of `key`. Bijective in the counter.
FATHOM_HD constexpr PhiloxBlock philox4x32(PhiloxBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = PhiloxBlock{{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                           static_cast<uint32_t>(product1),
                           static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                           static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;  // golden ratio
    key1 += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

/// Words 4*index .. 4*index+3 of a stream: key = seed, counter = (index, stream), low words first.
FATHOM_HD constexpr PhiloxBlock philox_block(uint64_t seed, uint64_t stream, uint64_t index) {
  const PhiloxBlock counter{{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                             static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}};
  return philox4x32(counter, seed);
}

/// The uniform float of a random word: one of 2^24 equidistant values in [0, 1). Exact.
FATHOM_HD constexpr float uniform_from_u32(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

/// The standard normal float of two random words, by Box-Muller:
/// sqrt(-2 ln u) cos(2 pi v), u = (top 24 bits + 1) / 2^24 in (0, 1], v uniform in [0, 1).
/// Magnitude is at most sqrt(48 ln 2) = 5.77.
float normal_from_u32(uint32_t word0, uint32_t word1);

/// Reads one stream word by word. Cheap to copy and to create; not thread-safe, since every thread
/// makes its own. A request uses its id as `stream` and a token position as `index`.
class Rng {
 public:
  /// Starts at word 4 * index of the stream (seed, stream).
  FATHOM_HD constexpr explicit Rng(uint64_t seed, uint64_t stream = 0, uint64_t index = 0)
      : seed_(seed), stream_(stream), index_(index) {}

  /// The next 32 random bits.
  FATHOM_HD constexpr uint32_t next_u32() {
    if (used_ == 4) {
      block_ = philox_block(seed_, stream_, index_++);
      used_ = 0;
    }
    return block_.word[used_++];
  }

  /// The next two words, the first in the low half.
  FATHOM_HD constexpr uint64_t next_u64() {
    const uint64_t low = next_u32();
    return low | uint64_t{next_u32()} << 32;
  }

  /// Uniform in [0, 1), from one word.
  FATHOM_HD constexpr float next_uniform() { return uniform_from_u32(next_u32()); }

  /// Uniform integer in [0, bound), without bias (Lemire's rejection); bound >= 1. Takes one word,
  /// rarely more.
  FATHOM_HD constexpr uint32_t next_below(uint32_t bound) {
    const uint32_t threshold = (0u - bound) % bound;  // 2^32 mod bound
    uint64_t product = uint64_t{next_u32()} * bound;
    while (static_cast<uint32_t>(product) < threshold)
      product = uint64_t{next_u32()} * bound;
    return static_cast<uint32_t>(product >> 32);
  }

  /// Standard normal, from two words.
  float next_normal() {
    const uint32_t word0 = next_u32();
    return normal_from_u32(word0, next_u32());
  }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t index_;  // of the block that comes next
  PhiloxBlock block_{};
  int used_ = 4;  // words of block_ already handed out
};

}  // namespace fathom
