#include "fathom/base/rng.h"

#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <set>
#include <vector>

namespace fathom {
namespace {

// Rows "philox4x32 10" of tests/kat_vectors in Random123 1.14.
TEST(Philox, MatchesTheKnownAnswersOfRandom123) {
  EXPECT_EQ(philox4x32({{0, 0, 0, 0}}, 0),
            (PhiloxBlock{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  EXPECT_EQ(philox4x32({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffffffffffff),
            (PhiloxBlock{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822),
            (PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Philox, IsUsableInConstantExpressions) {
  static_assert(philox_block(0, 0, 0).word[0] == 0x6627e8d5);
  static_assert(Rng(0).next_u32() == 0x6627e8d5);
}

TEST(Philox, BlockNamesSeedStreamAndIndexLowWordsFirst) {
  EXPECT_EQ(philox_block(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Rng, ReadsTheBlocksOfItsStreamInOrder) {
  Rng rng(42, 7, 1000);
  for (uint64_t index = 1000; index < 1005; ++index) {
    const PhiloxBlock block = philox_block(42, 7, index);
    for (const uint32_t word : block.word)
      EXPECT_EQ(rng.next_u32(), word);
  }
}

TEST(Rng, CopiesContinueAlike) {
  Rng a(5);
  a.next_u32();
  Rng b = a;
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(a.next_u32(), b.next_u32());
}

TEST(Rng, NextU64HoldsTheFirstWordLow) {
  EXPECT_EQ(Rng(0).next_u64(), 0xe169c58d6627e8d5u);
}

TEST(Rng, SeedsStreamsAndPositionsShareNoWords) {
  std::set<uint32_t> words;
  for (uint64_t i = 0; i < 8; ++i) {
    words.insert(Rng(i).next_u32());
    words.insert(Rng(0, i + 1).next_u32());
    words.insert(Rng(0, 0, i + 1).next_u32());
    words.insert(Rng(i << 32 | 99).next_u32());
    words.insert(Rng(0, (i + 1) << 32).next_u32());
    words.insert(Rng(0, 0, (i + 1) << 32).next_u32());
  }
  EXPECT_EQ(words.size(), 48u);
}

TEST(Uniform, CoversZeroToJustBelowOne) {
  EXPECT_EQ(uniform_from_u32(0), 0.0f);
  EXPECT_EQ(uniform_from_u32(0xFF), 0.0f);
  EXPECT_EQ(uniform_from_u32(0x100), 0x1p-24f);
  EXPECT_EQ(uniform_from_u32(0x80000000), 0.5f);
  EXPECT_EQ(uniform_from_u32(0xFFFFFFFF), 1.0f - 0x1p-24f);
}

TEST(Uniform, FillsEqualBinsEqually) {
  constexpr int kBins = 64, kDraws = 64 * 4000;
  std::array<int, kBins> counts{};
  Rng rng(11);
  for (int i = 0; i < kDraws; ++i)
    ++counts[static_cast<size_t>(rng.next_uniform() * kBins)];
  double chi_square = 0;
  const double expected = static_cast<double>(kDraws) / kBins;
  for (const int count : counts)
    chi_square += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi_square, 120.0) << "63 degrees of freedom: p < 2e-5 beyond";
}

TEST(Normal, IsTheBoxMullerTransformOfItsWords) {
  EXPECT_EQ(normal_from_u32(0xFFFFFFFF, 0x12345678), 0.0f) << "u = 1 has radius 0";
  EXPECT_NEAR(normal_from_u32(0, 0), std::sqrt(48 * std::log(2.0)), 1e-6);
  EXPECT_NEAR(normal_from_u32(0, 0x80000000), -std::sqrt(48 * std::log(2.0)), 1e-6);
  Rng words(1), rng(1);
  for (int i = 0; i < 10000; ++i) {
    const double u = ((words.next_u32() >> 8) + 1) * 0x1p-24;
    const double v = (words.next_u32() >> 8) * 0x1p-24;
    const double expected = std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
    ASSERT_NEAR(rng.next_normal(), expected, 4e-6) << i;
  }
}

TEST(Normal, HasTheMomentsOfTheStandardNormal) {
  constexpr int kDraws = 200000;
  double sums[5] = {};
  Rng rng(3);
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.next_normal();
    double power = 1;
    for (double& sum : sums) {
      sum += power;
      power *= x;
    }
  }
  // Five standard errors of each moment.
  EXPECT_NEAR(sums[1] / kDraws, 0.0, 5 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(sums[2] / kDraws, 1.0, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(sums[3] / kDraws, 0.0, 5 * std::sqrt(15.0 / kDraws));
  EXPECT_NEAR(sums[4] / kDraws, 3.0, 5 * std::sqrt(96.0 / kDraws));
}

TEST(NextBelow, StaysBelowAndReachesEveryValueEqually) {
  Rng rng(8);
  EXPECT_EQ(rng.next_below(1), 0u);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70000; ++i)
    ++counts[rng.next_below(7)];
  double chi_square = 0;
  for (const int count : counts)
    chi_square += (count - 10000.0) * (count - 10000.0) / 10000.0;
  EXPECT_LT(chi_square, 33.0) << "6 degrees of freedom: p < 1e-5 beyond";
}

TEST(NextBelow, RejectsTheWordsThatWouldFavourSmallValues) {
  // With bound 3 * 2^30, words whose product has a low half below 2^32 mod bound = 2^30 are
  // rejected: a quarter of them.
  const uint32_t bound = 3u << 30;
  Rng words(13), rng(13);
  for (int i = 0; i < 1000; ++i) {
    uint64_t product = uint64_t{words.next_u32()} * bound;
    while ((product & 0xFFFFFFFF) < (1u << 30))
      product = uint64_t{words.next_u32()} * bound;
    ASSERT_EQ(rng.next_below(bound), product >> 32);
  }
}

}  // namespace
}  // namespace fathom
