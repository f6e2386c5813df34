#include "fathom/formats/integer/qserve.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <vector>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using Codes = std::vector<uint8_t>;

std::vector<float> normals(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values)
    x = rng.next_normal();
  return values;
}

// ---- per channel ----

TEST(QserveChannels, MatchThePublishedVectors) {
  const struct {
    std::vector<float> weights;
    float scale;
    Codes codes;
    float szero;
  } vectors[] = {{{-.3f, .1f, .45f, 0, -.05f}, .04998779f, {0, 8, 15, 6, 5}, .2998047f},
                 {{.2f, .4f, .6f, .8f, 1.0f}, .05334473f, {0, 4, 7, 11, 15}, -.2133789f},
                 {{-1, -.5f, -.25f, -.75f, -.1f}, .05999756f, {0, 9, 13, 5, 15}, 1.0195313f},
                 {{-.75f, .75f, 0, .25f, -.5f}, .09997559f, {0, 15, 8, 10, 3}, .7998047f},
                 {{.01f, -.02f, .04f, -.035f, .015f}, .00500107f, {9, 3, 15, 0, 10}, .0350037f}};

  for (const auto& v : vectors) {
    Codes codes(5);
    F16 scale{}, szero{};
    ASSERT_TRUE(
        qserve_quantize_channels(v.weights.data(), 1, 5, codes.data(), &scale, &szero).ok());
    EXPECT_NEAR(to_float(scale), v.scale, 1e-8);
    EXPECT_EQ(codes, v.codes);
    EXPECT_NEAR(to_float(szero), v.szero, 6e-8);
  }
}

TEST(QserveActivations, MatchThePublishedEpilogueExample) {
  const float a[] = {.5f, -1, .25f, 2, -.75f};
  const float w[] = {-.3f, .1f, .45f, 0, -.05f};
  int8_t a8[5];
  F16 a_scale{}, a_sum{}, scale{}, szero{};
  Codes q(5);

  qserve_quantize_activations(a, 1, 5, a8, &a_scale, &a_sum);
  ASSERT_TRUE(qserve_quantize_channels(w, 1, 5, q.data(), &scale, &szero).ok());

  EXPECT_EQ(std::vector<int>(a8, a8 + 5), (std::vector<int>{32, -64, 16, 127, -48}));
  EXPECT_NEAR(to_float(a_scale), .01574707, 5e-9);
  EXPECT_EQ(to_float(a_sum), 1.0f);
  int acc = 0;
  for (size_t i = 0; i < 5; ++i)
    acc += a8[i] * q[i];
  EXPECT_EQ(acc, 250);
  const float product = static_cast<float>(acc) * to_float(a_scale) * to_float(scale);
  EXPECT_NEAR(product - to_float(szero) * to_float(a_sum), -.1030144, 5e-8);
  const float quantised_sum =
      static_cast<float>(std::accumulate(a8, a8 + 5, 0)) * to_float(a_scale);
  EXPECT_NEAR(product - to_float(szero) * quantised_sum, -.1006355, 5e-8);
}

TEST(QserveActivations, SumTheRowBeforeQuantisation) {
  const int64_t k = 8192;
  std::vector<float> x(static_cast<size_t>(k));
  Rng rng(6);
  double sum = 0;
  for (float& value : x) {
    value = to_float(f16_from_float(rng.next_normal()));
    sum += value;
  }
  std::vector<int8_t> codes(x.size());
  F16 scale{}, row_sum{};
  qserve_quantize_activations(x.data(), 1, k, codes.data(), &scale, &row_sum);
  EXPECT_EQ(row_sum, f16_from_float(static_cast<float>(sum)));
}

TEST(QserveChannels, AreWithinHalfAStepPlusTheRoundingOfStoredScales) {
  const int64_t n = 8, k = 96;
  const auto weights = normals(n * k, 44);
  Codes codes(weights.size());
  std::vector<F16> scales(8), szeros(8);
  std::vector<float> decoded(weights.size());
  ASSERT_TRUE(
      qserve_quantize_channels(weights.data(), n, k, codes.data(), scales.data(), szeros.data())
          .ok());
  qserve_dequantize_channels(codes.data(), scales.data(), szeros.data(), n, k, decoded.data());
  for (size_t i = 0; i < weights.size(); ++i) {
    const float scale = to_float(scales[i / 96]);
    // Two roundings to f16 (2^-11 each) act on values of up to 15 steps.
    ASSERT_LE(std::fabs(decoded[i] - weights[i]), (0.5f + 15 * 0x1p-10f) * scale) << i;
  }
}

TEST(QserveChannels, KeepConstantRows) {
  const float rows[4][3] = {{0, 0, 0}, {1.5f, 1.5f, 1.5f}, {-3, -3, -3}, {1e-3f, 1e-3f, 1e-3f}};
  for (const auto& row : rows) {
    Codes codes(3);
    F16 scale{}, szero{};
    float decoded[3];
    ASSERT_TRUE(qserve_quantize_channels(row, 1, 3, codes.data(), &scale, &szero).ok());
    qserve_dequantize_channels(codes.data(), &scale, &szero, 1, 3, decoded);
    EXPECT_NEAR(decoded[2], row[2], std::fabs(row[2]) * 0x1p-11f);
  }
}

TEST(QserveChannels, RefuseWhatF16CannotHold) {
  const float large[2] = {1e6f, -1e6f}, offset[2] = {1e6f, 1e6f};
  const float nan[2] = {1, std::numeric_limits<float>::quiet_NaN()};
  Codes codes(2);
  F16 scale{}, szero{};
  const auto quantize = [&](const float* w) {
    return qserve_quantize_channels(w, 1, 2, codes.data(), &scale, &szero);
  };
  EXPECT_EQ(quantize(large).code(), StatusCode::kNumerical);
  EXPECT_THAT(quantize(large).message(), HasSubstr("scale of row 0"));
  EXPECT_THAT(quantize(offset).message(), HasSubstr("zero point of row 0"));
  EXPECT_THAT(quantize(nan).message(), HasSubstr("column 1 is nan"));
}

// ---- per group ----

TEST(QserveGroup, MatchesThePublishedVectors) {
  const struct {
    std::vector<int8_t> values;
    int scale;
    Codes codes;
    int stored_zero;
    std::vector<int> decoded;
  } vectors[] = {{{-90, 20, 50, 119, -33}, 14, {0, 7, 10, 14, 4}, -84, {-84, 14, 56, 112, -28}},
                 {{5, -2, 11, 7, -12}, 2, {8, 5, 12, 10, 0}, -12, {4, -2, 12, 8, -12}},
                 {{60, 70, 80, 65, 90}, 2, {0, 5, 10, 2, 15}, 60, {60, 70, 80, 64, 90}},
                 {{-119, 119, 0, 60, -60}, 16, {0, 14, 7, 11, 3}, -112, {-112, 112, 0, 64, -64}},
                 {{-3, 2, 0, 4, 1}, 1, {0, 5, 3, 7, 4}, -3, {-3, 2, 0, 4, 1}}};

  for (const auto& v : vectors) {
    Codes codes(5);
    const QserveGroup group = qserve_quantize_group(v.values.data(), 5, codes.data());
    EXPECT_EQ(group.scale, v.scale);
    EXPECT_EQ(group.stored_zero, v.stored_zero);
    EXPECT_EQ(codes, v.codes);
    for (size_t i = 0; i < 5; ++i)
      EXPECT_EQ(qserve_group_value(codes[i], group), v.decoded[i]);
  }
}

TEST(QserveGroup, EveryRangeWithin119DecodesWithoutWrappingWithinHalfAScaleAndTheClamp) {
  for (int min = -119; min <= 119; ++min) {
    for (int max = min; max <= 119; ++max) {
      std::vector<int8_t> values;
      for (int v = min; v <= max; ++v)
        values.push_back(static_cast<int8_t>(v));
      Codes codes(values.size());
      const QserveGroup group =
          qserve_quantize_group(values.data(), std::ssize(values), codes.data());
      for (size_t i = 0; i < values.size(); ++i) {
        const int exact = codes[i] * group.scale + group.stored_zero;
        ASSERT_EQ(qserve_group_value(codes[i], group), exact) << min << " .. " << max;
        // Half a step of the value, half a step of the zero point, and what the clamp to 15 costs
        // where the scale was rounded down.
        ASSERT_LE(std::abs(exact - values[i]), group.scale + 7) << min << " .. " << max;
      }
    }
  }
}

TEST(QserveGroup, WrapsLikeTheByteArithmeticOfTheKernel) {
  EXPECT_EQ(qserve_group_value(15, {.scale = 16, .stored_zero = -112}), -128);
  EXPECT_EQ(qserve_group_value(15, {.scale = 127, .stored_zero = 0}), static_cast<int8_t>(113));
}

TEST(QserveGroups, MatchATwoLevelOracle) {
  const int64_t n = 5, k = 384;
  auto weights = normals(n * k, 90);
  std::fill(weights.begin() + k, weights.begin() + 2 * k, 0.0f);  // a row of zeros
  Codes codes(weights.size());
  std::vector<F16> row_scales(5);
  std::vector<int8_t> scales(15), zeros(15);
  std::vector<float> decoded(weights.size());

  ASSERT_TRUE(qserve_quantize_groups(weights.data(), n, k, codes.data(), row_scales.data(),
                                     scales.data(), zeros.data())
                  .ok());
  qserve_dequantize_groups(codes.data(), row_scales.data(), scales.data(), zeros.data(), n, k,
                           decoded.data());

  for (size_t row = 0; row < 5; ++row) {
    double absmax = 0;
    for (size_t j = 0; j < 384; ++j) {
      absmax = std::max(absmax, std::fabs(static_cast<double>(weights[row * 384 + j])));
    }
    const double s = absmax == 0 ? 0x1p-24 : absmax / 119;
    EXPECT_EQ(row_scales[row], f16_from_float(static_cast<float>(s)));
    for (size_t g = 0; g < 3; ++g) {
      std::vector<int8_t> level1;
      for (size_t j = 0; j < 128; ++j) {
        level1.push_back(static_cast<int8_t>(std::nearbyint(weights[row * 384 + g * 128 + j] / s)));
      }
      Codes expected(128);
      const QserveGroup group = qserve_quantize_group(level1.data(), 128, expected.data());
      EXPECT_EQ(scales[row * 3 + g], group.scale);
      EXPECT_EQ(zeros[row * 3 + g], group.stored_zero);
      for (size_t j = 0; j < 128; ++j) {
        const size_t i = row * 384 + g * 128 + j;
        ASSERT_EQ(codes[i], expected[j]) << i;
        ASSERT_EQ(decoded[i], static_cast<float>(codes[i] * group.scale + group.stored_zero) *
                                  to_float(row_scales[row]));
      }
    }
  }
}

TEST(QserveGroups, RefusePartialGroupsAndNonFiniteWeights) {
  std::vector<float> weights(128, 1.0f);
  Codes codes(128);
  F16 row_scale{};
  int8_t scale = 0, zero = 0;
  const auto quantize = [&](int64_t k) {
    return qserve_quantize_groups(weights.data(), 1, k, codes.data(), &row_scale, &scale, &zero);
  };
  EXPECT_EQ(quantize(127).code(), StatusCode::kInvalidArgument);
  weights[5] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(quantize(128).message(), HasSubstr("row 0, column 5 is inf"));
  weights[5] = 1e8f;
  EXPECT_THAT(quantize(128).message(), HasSubstr("scale of row 0"));
}

// ---- packing ----

TEST(QservePack, PutsCodesWhereTheKernelReadsThem) {
  const struct {
    int64_t n, k, byte;
    bool high;
  } vectors[] = {{0, 0, 0, false},  {16, 0, 0, true},   {0, 1, 1, false},
                 {0, 4, 16, false}, {0, 16, 8, false},  {8, 0, 4, false},
                 {1, 0, 64, false}, {24, 17, 13, true}, {31, 31, 511, true}};

  for (const auto& v : vectors) {
    EXPECT_EQ(qserve_packed_offset(v.n, v.k, 32), v.byte) << v.n << ", " << v.k;
    Codes codes(32 * 32), packed(512);
    codes[static_cast<size_t>(v.n * 32 + v.k)] = 0xA;
    ASSERT_TRUE(qserve_pack(codes.data(), 32, 32, packed.data()).ok());
    EXPECT_EQ(packed[static_cast<size_t>(v.byte)], v.high ? 0xA0 : 0x0A);
  }
}

TEST(QservePack, OrdersTilesRowMajor) {
  EXPECT_EQ(qserve_packed_offset(0, 32, 96), 512);
  EXPECT_EQ(qserve_packed_offset(32, 0, 96), 3 * 512);
  EXPECT_EQ(qserve_packed_offset(32 + 31, 64 + 31, 96), 5 * 512 + 511);
}

TEST(QservePack, RoundTrips) {
  Rng rng(1);
  for (const int64_t n : {32, 64, 96}) {
    for (const int64_t k : {32, 128, 160}) {
      Codes codes(static_cast<size_t>(n * k)), back(codes.size());
      for (uint8_t& code : codes)
        code = static_cast<uint8_t>(rng.next_below(16));
      Codes packed(codes.size() / 2);
      ASSERT_TRUE(qserve_pack(codes.data(), n, k, packed.data()).ok());
      ASSERT_TRUE(qserve_unpack(packed.data(), n, k, back.data()).ok());
      ASSERT_EQ(back, codes);
    }
  }
}

TEST(QservePack, RefusesPartialTiles) {
  EXPECT_EQ(qserve_pack(nullptr, 33, 32, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(qserve_unpack(nullptr, 32, 16, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(qserve_interleave(nullptr, 16, 1, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(qserve_deinterleave(nullptr, 16, 1, nullptr).code(), StatusCode::kInvalidArgument);
}

TEST(QserveInterleave, StoresChannelsInTheOrderOfTheTensorCore) {
  std::vector<int8_t> rows, kernel(64 * 2), back(64 * 2);
  for (int i = 0; i < 64; ++i) {
    rows.push_back(static_cast<int8_t>(i));
    rows.push_back(static_cast<int8_t>(-i));
  }

  ASSERT_TRUE(qserve_interleave(rows.data(), 64, 2, kernel.data()).ok());

  const int8_t head[] = {0, 8, 16, 24, 1, 9, 17, 25, 2};
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(kernel[i], head[i]);
    EXPECT_EQ(kernel[32 + i], head[i] + 32);
    EXPECT_EQ(kernel[64 + i], -head[i]);
  }
  ASSERT_TRUE(qserve_deinterleave(kernel.data(), 64, 2, back.data()).ok());
  EXPECT_EQ(back, rows);
}

}  // namespace
}  // namespace fathom
