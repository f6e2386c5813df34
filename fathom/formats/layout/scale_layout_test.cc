#include "fathom/formats/layout/scale_layout.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <vector>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

constexpr int64_t kSizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 127, 128, 129, 257};
constexpr int64_t kColumns[] = {1, 3, 4, 5, 8, 13};

std::vector<uint8_t> random_bytes(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& byte : bytes)
    byte = static_cast<uint8_t>(1 + rng.next_below(254));
  return bytes;
}

TEST(Swizzle128x4, PutsScalesWhereTheMmaReadsThem) {
  const struct {
    int64_t m, k, num_scales, offset;
  } vectors[] = {{0, 0, 448, 0},        {1, 0, 448, 16},      {31, 3, 448, 499},
                 {32, 0, 448, 4},       {0, 4, 448, 512},     {127, 447, 448, 57343},
                 {128, 0, 448, 57344},  {200, 7, 448, 57995}, {37, 5, 128, 597},
                 {129, 130, 448, 73746}};

  for (const auto& [m, k, num_scales, offset] : vectors) {
    EXPECT_EQ(swizzled_128x4_offset(m, k, num_scales), offset) << m << ", " << k;
  }
}

TEST(Swizzle8x4, PutsScalesWhereTheKernelReadsThem) {
  EXPECT_EQ(swizzled_8x4_offset(0, 0, 448), 0);
  EXPECT_EQ(swizzled_8x4_offset(1, 0, 448), 4);
  EXPECT_EQ(swizzled_8x4_offset(7, 3, 448), 31);
  EXPECT_EQ(swizzled_8x4_offset(8, 0, 448), 3584);
  EXPECT_EQ(swizzled_8x4_offset(0, 4, 448), 32);
}

TEST(Swizzle, OffsetsAreDistinctAndInsideTheAllocation) {
  for (const int64_t m : kSizes) {
    for (const int64_t columns : kColumns) {
      std::set<int64_t> large, small;
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t k = 0; k < columns; ++k) {
          large.insert(swizzled_128x4_offset(i, k, columns));
          small.insert(swizzled_8x4_offset(i, k, columns));
        }
      }
      ASSERT_EQ(std::ssize(large), m * columns);
      ASSERT_EQ(std::ssize(small), m * columns);
      ASSERT_LT(*large.rbegin(), swizzled_128x4_bytes(m, columns));
      ASSERT_LT(*small.rbegin(), swizzled_8x4_bytes(m, columns));
    }
  }
}

TEST(Swizzle, AllocatesWholeTiles) {
  EXPECT_EQ(swizzled_128x4_bytes(1, 1), 512);
  EXPECT_EQ(swizzled_128x4_bytes(129, 448), 256 * 448);
  EXPECT_EQ(swizzled_8x4_bytes(9, 5), 16 * 8);
  EXPECT_EQ(swizzled_128x4_bytes(0, 448), 0);
  EXPECT_EQ(swizzled_rows(0, 8), 0);
  EXPECT_EQ(swizzled_rows(3, 8), 3 * 128);
  EXPECT_EQ(swizzled_rows(130, 2), 128 + 256);  // 1 and 129
  EXPECT_EQ(swizzled_rows(257, 2), 128 + 256);  // 1 and 256
}

TEST(Swizzle, RoundTripsAndZeroesPaddingAlone) {
  for (const int64_t m : kSizes) {
    for (const int64_t columns : kColumns) {
      const auto linear = random_bytes(m * columns, static_cast<uint64_t>(m * 100 + columns));
      std::vector<uint8_t> back(linear.size());

      std::vector<uint8_t> large(static_cast<size_t>(swizzled_128x4_bytes(m, columns)), 0xFF);
      swizzle_128x4(linear.data(), m, columns, large.data());
      unswizzle_128x4(large.data(), m, columns, back.data());
      ASSERT_EQ(back, linear);
      ASSERT_EQ(std::ssize(large) - std::count(large.begin(), large.end(), 0), m * columns);

      std::vector<uint8_t> small(static_cast<size_t>(swizzled_8x4_bytes(m, columns)), 0xFF);
      swizzle_8x4(linear.data(), m, columns, small.data());
      unswizzle_8x4(small.data(), m, columns, back.data());
      ASSERT_EQ(back, linear);
      ASSERT_EQ(std::ssize(small) - std::count(small.begin(), small.end(), 0), m * columns);
    }
  }
}

TEST(BlockscaleOffsets, StartEveryExpertAtATileOfRows) {
  const int32_t rows[] = {0, 1, 127, 128, 129, 0, 300};
  int32_t offsets[8];

  blockscale_offsets(rows, offsets);

  const int32_t expected[] = {0, 0, 128, 256, 384, 640, 640, 1024};
  EXPECT_TRUE(std::equal(offsets, offsets + 8, expected));
}

TEST(BlockscaleOffsets, AreZeroWithoutExperts) {
  int32_t total = -1;
  blockscale_offsets({}, {&total, 1});
  EXPECT_EQ(total, 0);
}

TEST(ColumnMajorScales, PutRowsSideBySideAtATmaAlignedStride) {
  // Three rows of two scales: columns of stride 4.
  const float linear[] = {1, 2, 3, 4, 5, 6};
  std::vector<float> column_major(8, std::numeric_limits<float>::quiet_NaN());

  scales_to_column_major(linear, 3, 2, tma_aligned_stride(3), column_major.data());

  EXPECT_EQ(column_major, (std::vector<float>{1, 3, 5, 0, 2, 4, 6, 0}));
}

TEST(ColumnMajorScales, RoundTrip) {
  for (const int64_t m : kSizes) {
    for (const int64_t columns : kColumns) {
      std::vector<float> linear(static_cast<size_t>(m * columns));
      for (size_t i = 0; i < linear.size(); ++i)
        linear[i] = static_cast<float>(i + 1);
      for (const int64_t stride : {m, tma_aligned_stride(m)}) {
        std::vector<float> column_major(static_cast<size_t>(stride * columns));
        std::vector<float> back(linear.size());
        scales_to_column_major(linear.data(), m, columns, stride, column_major.data());
        scales_from_column_major(column_major.data(), m, columns, stride, back.data());
        ASSERT_EQ(back, linear);
      }
    }
  }
}

TEST(PackedUe8m0, HoldsTheFirstScaleInTheLowByte) {
  EXPECT_EQ(pack_ue8m0(ue8m0_round_up(0x1p-7f), ue8m0_round_up(0x1p-8f), ue8m0_round_up(1.0f),
                       ue8m0_round_up(2.0f)),
            0x807F7778u);
}

TEST(PackedUe8m0, LiesColumnMajorWithMissingBytesZero) {
  // Two rows of five scales: two columns of words at stride 4.
  const Ue8m0 linear[] = {{1}, {2}, {3}, {4}, {5}, {11}, {12}, {13}, {14}, {15}};
  ASSERT_EQ(packed_ue8m0_words(2, 5), 8);
  std::vector<uint32_t> packed(8, 0xFFFFFFFF);

  scales_to_packed_ue8m0(linear, 2, 5, packed.data());

  EXPECT_EQ(packed, (std::vector<uint32_t>{0x04030201, 0x0E0D0C0B, 0, 0, 0x05, 0x0F, 0, 0}));
}

TEST(PackedUe8m0, RoundTrips) {
  for (const int64_t m : kSizes) {
    for (const int64_t columns : kColumns) {
      std::vector<Ue8m0> linear;
      for (const uint8_t byte : random_bytes(m * columns, 3))
        linear.push_back(Ue8m0{byte});
      std::vector<uint32_t> packed(static_cast<size_t>(packed_ue8m0_words(m, columns)));
      std::vector<Ue8m0> back(linear.size());
      scales_to_packed_ue8m0(linear.data(), m, columns, packed.data());
      scales_from_packed_ue8m0(packed.data(), m, columns, back.data());
      ASSERT_EQ(back, linear);
    }
  }
}

TEST(FirstBadScale, FindsNanInfinityAndNegatives) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {nan, inf, -inf, -1.0f, -std::numeric_limits<float>::denorm_min()}) {
    const float scales[] = {1.0f, 0.5f, bad, bad};
    EXPECT_EQ(first_bad_scale(scales, ZeroScale::kAllowed), 2) << bad;
    const F16 half[] = {f16_from_float(1.0f), f16_from_float(bad * 0x1p125f)};
    EXPECT_EQ(first_bad_scale(half, ZeroScale::kAllowed), 1) << bad;
    const Bf16 brain[] = {bf16_from_float(1.0f), bf16_from_float(bad * 0x1p60f)};
    EXPECT_EQ(first_bad_scale(brain, ZeroScale::kAllowed), 1) << bad;
  }
  const float good[] = {1.0f, 0x1p-149f, 3e38f};
  EXPECT_EQ(first_bad_scale(good, ZeroScale::kRefused), std::nullopt);
  EXPECT_EQ(first_bad_scale(std::span<const float>{}, ZeroScale::kRefused), std::nullopt);
}

TEST(FirstBadScale, TakesZeroOnlyWhereAllowed) {
  const float scales[] = {1.0f, 0.0f, -0.0f};
  EXPECT_EQ(first_bad_scale(scales, ZeroScale::kAllowed), std::nullopt);
  EXPECT_EQ(first_bad_scale(scales, ZeroScale::kRefused), 1);
  const E4m3 codes[] = {{0x38}, {0x80}, {0x00}};
  EXPECT_EQ(first_bad_scale(codes, ZeroScale::kAllowed), std::nullopt);
  EXPECT_EQ(first_bad_scale(codes, ZeroScale::kRefused), 1);
}

TEST(FirstBadScale, RefusesE4m3NanAndNegativesAndNothingElse) {
  for (unsigned code = 0; code < 256; ++code) {
    const E4m3 scale{static_cast<uint8_t>(code)};
    const bool bad = (code & 0x7F) == 0x7F || code > 0x80;
    EXPECT_EQ(first_bad_scale({&scale, 1}, ZeroScale::kAllowed).has_value(), bad) << code;
  }
}

TEST(FirstBadScale, RefusesUe8m0Code255AndNothingElse) {
  for (unsigned code = 0; code < 256; ++code) {
    const Ue8m0 scale{static_cast<uint8_t>(code)};
    EXPECT_EQ(first_bad_scale({&scale, 1}).has_value(), code == 255) << code;
  }
}

}  // namespace
}  // namespace fathom
