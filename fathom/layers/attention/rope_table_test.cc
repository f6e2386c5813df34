#include "fathom/layers/attention/rope_table.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>

namespace fathom {
namespace {

RopeParams v3() {
  return {.dim = 64, .theta = 10000.0, .yarn = true, .factor = 40.0, .original_positions = 4096};
}

// A table in memory of its own.
struct Table {
  std::vector<float> memory;
  View view;

  Table(const RopeParams& p, int64_t positions)
      : memory(static_cast<size_t>(positions * p.dim)),
        view(make_view(memory.data(), {positions, p.dim}, Format::kF32)) {
    fill_rope_table(p, view);
  }
};

// Rounded from exact values (YaRN, factor 40 over 4096, 64 rotary numbers).
constexpr uint32_t kFrequencyBits[32] = {
    0x3F800000, 0x3F3FF911, 0x3F0FF59A, 0x3ED7E89B, 0x3EA1E89B, 0x3E72D424, 0x3E361887, 0x3E088D77,
    0x3DCCCCCD, 0x3D99940E, 0x3D6655C3, 0x3D1FC5BA, 0x3CDC321B, 0x3C968DC4, 0x3C4BF283, 0x3C088D77,
    0x3BB43958, 0x3B697067, 0x3B136A16, 0x3AB3A2CE, 0x3A4F3E37, 0x39D99312, 0x393A7753, 0x380BD472,
    0x37D1B717, 0x379D43A4, 0x376BDCF1, 0x3730DF51, 0x3704A2B3, 0x36C6ECDD, 0x36952C42, 0x365FBA4F};

TEST(RopeTable, FrequenciesOfV3AreThePublishedOnes) {
  const auto w = rope_frequencies(v3());
  ASSERT_EQ(w.size(), 32u);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(static_cast<float>(w[i])), kFrequencyBits[i]) << i;
  }
}

// DeepSeek-V4: layers with compressed rows stretch a base of 160000, the others do not stretch.
RopeParams v4_compressed() {
  return {.dim = 64, .theta = 160000.0, .yarn = true, .factor = 16.0, .original_positions = 65536};
}

struct Frequency {
  size_t pair;
  double value;
};

TEST(RopeTable, FrequenciesOfV4WithCompressedRowsAreTheReferenceOnes) {
  const Frequency expected[] = {
      {0, 1.0},          {4, 2.236068e-1},  {8, 5e-2},         {12, 1.118034e-2}, {15, 3.635539e-3},
      {16, 2.265625e-3}, {17, 1.396801e-3}, {18, 8.496897e-4}, {19, 5.080820e-4}, {20, 2.969778e-4},
      {21, 1.681800e-4}, {22, 9.086784e-5}, {23, 4.544423e-5}, {24, 1.953125e-5}, {25, 5.372313e-6},
      {28, 1.746928e-6}, {31, 5.680529e-7}};
  const std::vector<double> w = rope_frequencies(v4_compressed());
  for (const Frequency& f : expected)
    EXPECT_NEAR(w[f.pair], f.value, 1e-6 * f.value) << f.pair;
}

TEST(RopeTable, FrequenciesOfV4WithoutCompressedRowsAreTheReferenceOnes) {
  const std::vector<double> w = rope_frequencies({.dim = 64, .theta = 10000.0});

  EXPECT_EQ(w[0], 1.0);
  EXPECT_NEAR(w[16], 1e-2, 1e-12);
  EXPECT_NEAR(w[31], 1.333521e-4, 1e-10);
}

TEST(RopeTable, StretchOfASmallDimensionBeginsAtNoNegativePair) {
  // The bounds before they are clamped: -0.3015 and 2.0123.
  const std::vector<double> w = rope_frequencies(
      {.dim = 16, .theta = 160000.0, .yarn = true, .factor = 4.0, .original_positions = 128});

  const double expected[4] = {1, 1.677051e-1, 2.5e-2, 2.795085e-3};
  for (size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(w[i], expected[i], 1e-6 * expected[i]) << i;
}

TEST(RopeTable, EqualBoundsOfTheStretchAreHeldApart) {
  // Of 8 numbers both bounds are 0: the first pair is whole, the others are stretched.
  const RopeParams p{.dim = 8,
                     .theta = 160000.0,
                     .yarn = true,
                     .factor = 4.0,
                     .original_positions = 6,
                     .beta_fast = 1.0};

  const std::vector<double> w = rope_frequencies(p);

  EXPECT_EQ(w[0], 1.0);
  for (size_t i = 1; i < 4; ++i)
    EXPECT_DOUBLE_EQ(w[i], std::pow(160000.0, -static_cast<double>(i) / 4.0) / 4.0) << i;
}

TEST(RopeTable, OfV4HasCosinesAndSinesAsTheyAre) {
  const Table table(v4_compressed(), 3);
  const float* row = table.view.row<float>(2);

  EXPECT_EQ(row[0], static_cast<float>(std::cos(2.0)));
  EXPECT_EQ(row[32], static_cast<float>(std::sin(2.0)));
  EXPECT_NEAR(row[32 + 20], 2 * 2.969778e-4, 1e-9) << "no factor stretches them";
}

TEST(RopeTable, WithoutYarnFrequenciesArePlainPowers) {
  RopeParams p = v3();
  p.yarn = false;
  const auto w = rope_frequencies(p);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_DOUBLE_EQ(w[i], std::pow(10000.0, -static_cast<double>(i) / 32.0)) << i;
  }
}

TEST(RopeTable, LinearScalingDividesThePositionInFloat32) {
  const RopeParams p{.dim = 8, .theta = 10000.0, .position_divisor = 3.0};
  const Table table(p, 1001);
  const auto w = rope_frequencies(p);

  const float* row = table.view.row<float>(1000);
  for (size_t i = 0; i < 4; ++i) {
    const float angle = 1000.0f / 3.0f * static_cast<float>(w[i]);
    EXPECT_EQ(row[i], static_cast<float>(std::cos(static_cast<double>(angle)))) << i;
    EXPECT_EQ(row[4 + i], static_cast<float>(std::sin(static_cast<double>(angle)))) << i;
  }
}

TEST(RopeTable, RotatesTheReferenceVector) {
  // Pairs (1, 2) at i = 0 and (3, 4) at i = 20.
  const Table table(v3(), 1001);
  const double expected[2][4] = {{-1.142640, 1.922076, 2.996837, 4.002370},
                                 {-1.091380, 1.951638, -0.732694, 4.946025}};
  const int64_t positions[2] = {1, 1000};
  for (int p = 0; p < 2; ++p) {
    const float* row = table.view.row<float>(positions[p]);
    const int pair[2] = {0, 20};
    const double x[4] = {1, 2, 3, 4};
    for (int j = 0; j < 2; ++j) {
      const double c = row[pair[j]];
      const double s = row[32 + pair[j]];
      EXPECT_NEAR(x[2 * j] * c - x[2 * j + 1] * s, expected[p][2 * j], 2e-6);
      EXPECT_NEAR(x[2 * j] * s + x[2 * j + 1] * c, expected[p][2 * j + 1], 2e-6);
    }
  }
}

TEST(RopeTable, FarPositionsUseTheFloat32Product) {
  const int64_t position = 163839;
  const Table table(v3(), position + 1);
  const float* row = table.view.row<float>(position);
  for (int i = 0; i < 32; ++i) {
    const float angle = static_cast<float>(position) * std::bit_cast<float>(kFrequencyBits[i]);
    EXPECT_EQ(row[i], static_cast<float>(std::cos(static_cast<double>(angle)))) << i;
    EXPECT_EQ(row[32 + i], static_cast<float>(std::sin(static_cast<double>(angle)))) << i;
  }
}

TEST(RopeTable, FirstRowTurnsNothing) {
  const Table table(v3(), 1);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(table.view.as<float>()[i], 1.0f);
    EXPECT_EQ(table.view.as<float>()[32 + i], 0.0f);
  }
}

TEST(RopeTable, AttentionFactorMultipliesCosineAndSine) {
  RopeParams p = v3();
  p.attention_factor = 2.0;
  const Table plain(v3(), 8);
  const Table scaled(p, 8);
  for (int i = 0; i < 8 * 64; ++i) {
    EXPECT_EQ(scaled.view.as<float>()[i], 2.0f * plain.view.as<float>()[i]);
  }
}

TEST(RopeTable, RefusesAnOddDimension) {
  RopeParams p = v3();
  p.dim = 63;
  WeightStore store;

  const auto table = rope_table(store, p, 4);

  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().code(), StatusCode::kInvalidArgument);
}

TEST(RopeTable, OfADryStoreHasShapeAndNoMemory) {
  WeightStore store;

  const View table = rope_table(store, v3(), 1000).value();

  EXPECT_EQ(table.data, nullptr);
  EXPECT_EQ(table.dim(0), 1000);
  EXPECT_EQ(table.dim(1), 64);
}

}  // namespace
}  // namespace fathom
