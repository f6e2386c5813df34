#include "fathom/formats/layout/pair_layout.h"

#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/minifloat.h"

namespace fathom {
namespace {

constexpr float kLift = 0x1p126f;

std::vector<std::byte> random_codes(size_t bytes, uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out)
    b = static_cast<std::byte>(rng.next_u64() >> 32);
  return out;
}

std::array<uint32_t, 4> pairs_of(uint32_t w) {
  const uint32_t rotated = std::rotl(w, kPairRotation);
  return {w & kPairMask, (w << 3) & kPairMask, rotated & kPairMask,
          ((rotated & kLastPairMask) * kLastPairFactor) & kPairMask};
}

TEST(PairLayout, EveryPlaceIsTakenOnce) {
  uint32_t taken = 0;
  for (int pair = 0; pair < 4; ++pair) {
    for (int upper = 0; upper < 2; ++upper) {
      for (int bit = 0; bit < 4; ++bit)
        taken |= uint32_t{1} << place_of_pair_bit(pair, upper, bit);
    }
  }
  EXPECT_EQ(taken, 0xFFFFFFFFu);
}

TEST(PairLayout, MasksFindTheCodesOfALane) {
  const std::vector<std::byte> natural = random_codes(64 * kPairedBytes, 7);
  std::vector<std::byte> rows = natural;
  pair_codes(rows);
  const auto* codes = reinterpret_cast<const uint8_t*>(natural.data());
  for (int group = 0; group < 64; ++group) {
    for (int t = 0; t < 4; ++t) {
      uint32_t word;
      std::memcpy(&word, rows.data() + group * 16 + t * 4, 4);
      const std::array<uint32_t, 4> pairs = pairs_of(word);
      for (int p = 0; p < 4; ++p) {
        for (int upper = 0; upper < 2; ++upper) {
          const int k = group * kPairedCodes + 8 * p + 2 * t + upper;
          const uint32_t half = pairs[static_cast<size_t>(p)] >> (16 * upper) & 0xFFFFu;
          ASSERT_EQ(std::bit_cast<float>(half << 16) * kLift, to_float(unpack_e2m1(codes, k)))
              << "k " << k;
        }
      }
    }
  }
}

TEST(PairLayout, IsUndone) {
  const std::vector<std::byte> natural = random_codes(4096, 8);
  std::vector<std::byte> rows = natural;
  pair_codes(rows);
  EXPECT_NE(rows, natural);
  unpair_codes(rows);
  EXPECT_EQ(rows, natural);
}

}  // namespace
}  // namespace fathom
