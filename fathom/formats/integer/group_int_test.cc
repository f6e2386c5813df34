#include "fathom/formats/integer/group_int.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normals(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values)
    x = rng.next_normal();
  return values;
}

// ---- INT8 ----

TEST(Int8, RoundsRowsHalfAwayAndTruncatesGroupsAsThePublishedVectors) {
  const struct {
    float absmax, x;
    int half_away, truncated;
  } vectors[] = {{2.54f, 1, 50, 50},     {2.54f, -1.23f, -62, -61}, {12.7f, .05f, 1, 0},
                 {12.7f, -.15f, -2, -1}, {1, -1, -127, -127},       {3, 1.7f, 72, 71}};

  for (const auto& v : vectors) {
    const float x[2] = {v.absmax, v.x};
    int8_t codes[2];
    float scale = 0;
    int8_quantize_rows(x, 1, 2, codes, &scale);
    EXPECT_EQ(codes[1], v.half_away) << v.absmax << ", " << v.x;
    EXPECT_EQ(scale, v.absmax / 127.0f);
    int8_quantize_groups(x, 1, 2, 128, codes, &scale);
    EXPECT_EQ(codes[1], v.truncated) << v.absmax << ", " << v.x;
    EXPECT_EQ(scale, v.absmax / 127.0f);
  }
}

TEST(Int8, ZeroRowsHaveAScaleAndCodesZero) {
  const std::vector<float> x(5, 0.0f);
  std::vector<int8_t> codes(5, 99);
  float scale = kNan;
  int8_quantize_rows(x.data(), 1, 5, codes.data(), &scale);
  EXPECT_EQ(scale, 1e-10f / 127.0f);
  EXPECT_EQ(codes, std::vector<int8_t>(5, 0));
  codes.assign(5, 99);
  int8_quantize_groups(x.data(), 1, 5, 128, codes.data(), &scale);
  EXPECT_EQ(scale, 1e-10f / 127.0f);
  EXPECT_EQ(codes, std::vector<int8_t>(5, 0));
}

TEST(Int8, NonFiniteInputGivesDefinedCodes) {
  const float nan[3] = {kNan, 127.0f, -1.0f};
  int8_t codes[3];
  float scale = 0;
  int8_quantize_rows(nan, 1, 3, codes, &scale);
  EXPECT_EQ(std::vector<int8_t>(codes, codes + 3), (std::vector<int8_t>{0, 127, -1}));
  int8_quantize_groups(nan, 1, 3, 128, codes, &scale);
  EXPECT_EQ(std::vector<int8_t>(codes, codes + 3), (std::vector<int8_t>{0, 127, -1}));
  const float inf[3] = {kInf, 127.0f, -1.0f};
  int8_quantize_rows(inf, 1, 3, codes, &scale);
  EXPECT_EQ(std::vector<int8_t>(codes, codes + 3), (std::vector<int8_t>{0, 0, 0}));
}

TEST(Int8, RowsAreWithinHalfAStepAndGroupsWithinOne) {
  for (const int64_t k : {1, 2, 3, 127, 128, 129, 300}) {
    const int64_t m = 4, groups = (k + 127) / 128;
    const auto x = normals(m * k, 17);
    std::vector<int8_t> codes(x.size());
    std::vector<float> scales(static_cast<size_t>(m * groups), kNan), decoded(x.size(), kNan);
    int8_quantize_rows(x.data(), m, k, codes.data(), scales.data());
    int8_dequantize_groups(codes.data(), scales.data(), m, k, k, decoded.data());
    for (int64_t i = 0; i < m * k; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_LE(std::fabs(decoded[at] - x[at]), 0.5001f * scales[static_cast<size_t>(i / k)]) << i;
    }
    int8_quantize_groups(x.data(), m, k, 128, codes.data(), scales.data());
    int8_dequantize_groups(codes.data(), scales.data(), m, k, 128, decoded.data());
    for (int64_t i = 0; i < m * k; ++i) {
      const auto at = static_cast<size_t>(i);
      const float scale = scales[static_cast<size_t>(i / k * groups + i % k / 128)];
      ASSERT_LE(std::fabs(decoded[at]), std::fabs(x[at]) * 1.0001f) << "truncation grew a value";
      ASSERT_LT(std::fabs(decoded[at] - x[at]), 1.0001f * scale) << i;
    }
  }
}

// ---- W4AFP8 ----

TEST(Int4, PacksTwosComplementWithEvenCodesLow) {
  EXPECT_EQ(pack_int4(3, -2), 0xE3);
  EXPECT_EQ(pack_int4(7, -8), 0x87);
  for (int even = -8; even <= 7; ++even) {
    for (int odd = -8; odd <= 7; ++odd) {
      const uint8_t packed = pack_int4(static_cast<int8_t>(even), static_cast<int8_t>(odd));
      ASSERT_EQ(unpack_int4(&packed, 0), even);
      ASSERT_EQ(unpack_int4(&packed, 1), odd);
    }
  }
}

TEST(W4Fp8, MatchesThePublishedVectors) {
  const struct {
    int w4;
    float scale, rounded_scale, x, input_scale;
    int a8;
    float a8_value, product;
  } vectors[] = {{7, .0123f, .0123291f, 3, .02f, 0x71, 144, .2485547f},
                 {-8, .0123f, .0123291f, 3, .02f, 0x71, 144, -.2840625f},
                 {3, .001f, .00099945f, -.7f, .005f, 0xF1, -144, -.00215881f},
                 {-1, .0625f, .0625f, 100, .25f, 0x7C, 384, -6},
                 {0, .5f, .5f, 1, .01f, 0x6C, 96, 0}};

  for (const auto& v : vectors) {
    std::vector<uint8_t> packed(64, 0);
    packed[0] = pack_int4(static_cast<int8_t>(v.w4), 0);
    float weights[128];
    w4_fp8_dequantize(packed.data(), &v.scale, 1, 128, weights);
    const E4m3 a8 = e4m3_from_float(v.x / v.input_scale);

    EXPECT_EQ(a8.bits, v.a8) << v.x;
    EXPECT_EQ(to_float(a8), v.a8_value) << v.x;
    const float scale = to_float(bf16_from_float(v.scale));
    EXPECT_NEAR(scale, v.rounded_scale, 5e-6 * v.rounded_scale);
    EXPECT_EQ(weights[0], static_cast<float>(v.w4) * scale);
    const float product = weights[0] * to_float(a8) * v.input_scale;
    EXPECT_NEAR(product, v.product, 3e-6 * std::fabs(v.product)) << v.w4;
  }
}

TEST(W4Fp8, IsWithinHalfAStepAndItsScalesAreBf16) {
  const int64_t n = 3, k = 384;
  auto weights = normals(n * k, 21);
  std::fill(weights.begin(), weights.begin() + 128, 0.0f);
  std::vector<uint8_t> packed(weights.size() / 2);
  std::vector<float> scales(weights.size() / 128, kNan), decoded(weights.size(), kNan);

  ASSERT_TRUE(w4_fp8_quantize(weights.data(), n, k, packed.data(), scales.data()).ok());
  w4_fp8_dequantize(packed.data(), scales.data(), n, k, decoded.data());

  for (const float scale : scales) {
    EXPECT_GT(scale, 0.0f);
    EXPECT_EQ(to_float(bf16_from_float(scale)), scale);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    // A scale that was rounded down by 2^-9 leaves quotients up to 7.014, still nearest to 7.
    ASSERT_LE(std::fabs(decoded[i] - weights[i]), 0.5001f * scales[i / 128]) << i;
  }
}

TEST(W4Fp8, RefusesPartialGroupsAndNonFiniteWeights) {
  std::vector<float> weights(256, 1.0f), scales(2);
  std::vector<uint8_t> packed(128);
  EXPECT_EQ(w4_fp8_quantize(weights.data(), 1, 130, packed.data(), scales.data()).code(),
            StatusCode::kInvalidArgument);
  weights[200] = kNan;
  const Status status = w4_fp8_quantize(weights.data(), 2, 128, packed.data(), scales.data());
  EXPECT_EQ(status.code(), StatusCode::kNumerical);
  EXPECT_THAT(status.message(), HasSubstr("row 1, column 72"));
}

TEST(W4Fp8KernelScales, PutFourGroupsOfARowSideBySide) {
  const int64_t experts = 2, n = 3, groups = 8;
  std::vector<float> scales;
  for (int i = 0; i < experts * n * groups; ++i)
    scales.push_back(static_cast<float>(i));
  std::vector<Bf16> kernel(scales.size(), Bf16{0xFFFF});

  w4_fp8_kernel_scales(scales.data(), experts, n, groups, kernel.data());

  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t g = 0; g < groups / 4; ++g) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < 4; ++j) {
          const Bf16 found = kernel[static_cast<size_t>((e * groups / 4 + g) * n * 4 + 4 * i + j)];
          EXPECT_EQ(to_float(found), scales[static_cast<size_t>((e * n + i) * groups + 4 * g + j)]);
        }
      }
    }
  }
}

TEST(W4Fp8KernelScales, AreTransposedWhenGroupsAreNoMultipleOfFour) {
  const float scales[] = {1, 2, 3, 4, 5, 6};  // two rows of three groups
  Bf16 kernel[6];
  w4_fp8_kernel_scales(scales, 1, 2, 3, kernel);
  const float expected[] = {1, 4, 2, 5, 3, 6};
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(to_float(kernel[i]), expected[i]) << i;
}

}  // namespace
}  // namespace fathom
