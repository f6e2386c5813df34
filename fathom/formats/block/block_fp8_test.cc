#include "fathom/formats/block/block_fp8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/base/rng.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = std::numeric_limits<float>::min();

struct Quantised {
  float scale;
  E4m3 code;  // of x
  float value;
};

/// Quantises the group (amax, x) and looks at x.
Quantised quantise_pair(float amax, float x, const Fp8QuantOptions& options) {
  const float values[2] = {amax, x};
  E4m3 codes[2];
  Quantised out{};
  float decoded[2];
  fp8_quantize_groups(values, 1, 2, 128, options, codes, &out.scale);
  fp8_dequantize_groups(codes, &out.scale, 1, 2, 128, decoded);
  out.code = codes[1];
  out.value = decoded[1];
  return out;
}

std::vector<float> test_matrix(int64_t n, int64_t k, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n * k));
  for (float& x : values) {
    x = rng.next_normal();
    if (rng.next_below(8) == 0) x = x * x * x;  // heavy tail
  }
  return values;
}

/// Half the distance between neighbouring E4M3 values around |quotient| <= 448.
double half_step(double quotient) {
  if (quotient < 0x1p-6) return 0x1p-10;
  return std::ldexp(1.0, std::ilogb(quotient) - 4);
}

// ---- groups ----

TEST(Fp8Groups, MatchThePublishedVectors) {
  const struct {
    float amax, x;
    uint32_t scale_bits;
    int code;
    float value;
    int ue8m0_byte, ue8m0_code;
    float ue8m0_value;
  } vectors[] = {
      {3.5f, 3.5f, 0x3C000000, 0x7E, 3.5f, 120, 0x7E, 3.5f},
      {3.5f, -1.0f, 0x3C000000, 0xF0, -1.0f, 120, 0xF0, -1.0f},
      {3.5f, .011f, 0x3C000000, 0x3B, .0107421875f, 120, 0x3B, .0107421875f},
      {.7f, .25f, 0x3ACCCCCD, 0x72, .25f, 118, 0x70, .25f},
      {120, -7.7f, 0x3E892492, 0xDE, -7.5f, 126, 0xD7, -7.5f},
      {1e-5f, 5e-6f, 0x346FACAD, 0x5B, 4.9107e-6f, 105, 0x5A, 4.7684e-6f},
      {0, 0, 0x346FACAD, 0x00, 0, 105, 0x00, 0},
  };

  for (const auto& v : vectors) {
    const Quantised f32 = quantise_pair(v.amax, v.x, kFp8V3Demo);
    EXPECT_EQ(float_bits(f32.scale), v.scale_bits) << v.amax << ", " << v.x;
    EXPECT_EQ(f32.code.bits, v.code) << v.amax << ", " << v.x;
    EXPECT_NEAR(f32.value, v.value, 1e-5 * std::fabs(v.value)) << v.amax << ", " << v.x;
    const Quantised ue8m0 = quantise_pair(v.amax, v.x, kFp8V32DemoUe8m0);
    EXPECT_EQ(ue8m0_round_up(ue8m0.scale).bits, v.ue8m0_byte) << v.amax << ", " << v.x;
    EXPECT_TRUE(is_ue8m0(ue8m0.scale));
    EXPECT_EQ(ue8m0.code.bits, v.ue8m0_code) << v.amax << ", " << v.x;
    EXPECT_NEAR(ue8m0.value, v.ue8m0_value, 1e-5 * std::fabs(v.ue8m0_value)) << v.amax;
  }
}

TEST(Fp8Groups, DivisionAndMultiplicationByTheReciprocalDifferInTheLastBit) {
  EXPECT_EQ(float_bits(fp8_scale(120, kFp8V3Demo)), 0x3E892492u);
  EXPECT_EQ(float_bits(fp8_scale(120, kFp8V32Demo)), 0x3E892493u);
  EXPECT_EQ(float_bits(fp8_scale(1e-5f, kFp8V32Demo)), 0x346FACADu);
}

TEST(Fp8Groups, UseTheFloorOfTheImplementation) {
  const Quantised q = quantise_pair(1e-5f, 5e-6f, kFp8SglangGroup);
  EXPECT_EQ(float_bits(q.scale), 0x32BFBD57u);
  EXPECT_EQ(q.code.bits, 0x76);
  EXPECT_NEAR(q.value, 5e-6f, 1e-12);
  EXPECT_EQ(float_bits(quantise_pair(0, 0, kFp8SglangGroup).scale), 0x2A7B5123u);
  EXPECT_EQ(quantise_pair(0, 0, kFp8SglangGroup).code.bits, 0);
}

constexpr Fp8QuantOptions kAllOptions[] = {
    kFp8V3Demo,
    kFp8V32Demo,
    kFp8V32DemoUe8m0,
    kFp8SglangGroup,
    kFp8SglangGroupV2,
    kFp8DeepGemm,
    kFp8PerToken,
    Fp8QuantOptions{},
    {.rounding = Fp8QuantOptions::Rounding::kPowerOfTwoUp,
     .quotient = Fp8QuantOptions::Quotient::kMultiplyMaxOverAmax},
    {.quotient = Fp8QuantOptions::Quotient::kMultiplyMaxOverAmax}};

TEST(Fp8Groups, GiveZeroGroupsAScaleAndCodesZeroUnderAllOptions) {
  const std::vector<float> x(128, 0.0f);
  for (const Fp8QuantOptions& options : kAllOptions) {
    std::vector<E4m3> codes(128, E4m3{0x7F});
    float scale = kNan;
    fp8_quantize_groups(x.data(), 1, 128, 128, options, codes.data(), &scale);
    EXPECT_GE(scale, kTiny);
    EXPECT_EQ(codes, std::vector<E4m3>(128, E4m3{0}));
  }
}

TEST(Fp8Groups, AreWithinHalfAStepOfTheInputUnderAllOptions) {
  for (const Fp8QuantOptions& options : kAllOptions) {
    for (const int64_t k : {1, 2, 3, 127, 128, 129, 257}) {
      const int64_t m = 3;
      const int64_t groups = ceil_div<int64_t>(k, 128);
      const auto x = test_matrix(m, k, 12);
      std::vector<E4m3> codes(x.size());
      std::vector<float> scales(static_cast<size_t>(m * groups), kNan), decoded(x.size(), kNan);
      fp8_quantize_groups(x.data(), m, k, 128, options, codes.data(), scales.data());
      fp8_dequantize_groups(codes.data(), scales.data(), m, k, 128, decoded.data());
      for (int64_t i = 0; i < m * k; ++i) {
        const double scale = scales[static_cast<size_t>(i / k * groups + i % k / 128)];
        const double value = x[static_cast<size_t>(i)];
        const double error = std::fabs(decoded[static_cast<size_t>(i)] - value);
        ASSERT_LE(error, half_step(std::fabs(value / scale)) * scale * 1.00001) << k << ": " << i;
      }
    }
  }
}

TEST(Fp8Groups, KeepNanInItsOwnElement) {
  const float x[3] = {kNan, 448.0f, -1.0f};
  E4m3 codes[3];
  float scale = 0;
  fp8_quantize_groups(x, 1, 3, 128, kFp8V3Demo, codes, &scale);
  EXPECT_EQ(scale, 1.0f);
  EXPECT_EQ(codes[0].bits, 0x7F);
  EXPECT_EQ(codes[1].bits, 0x7E);
  EXPECT_EQ(codes[2].bits, 0xB8);
}

TEST(Fp8Groups, DoNothingWithoutRows) {
  E4m3 code{0x11};
  float scale = 3.0f;
  fp8_quantize_groups(nullptr, 0, 128, 128, kFp8V3Demo, &code, &scale);
  EXPECT_EQ(code.bits, 0x11);
  EXPECT_EQ(scale, 3.0f);
}

TEST(Fp8PerToken, MatchesThePublishedVectors) {
  const struct {
    float amax, x;
    uint32_t scale_bits;
    int code;
    float value;
  } vectors[] = {{12, 5, 0x3CDB6DB7, 0x74, 5.142857f},
                 {12, -.02f, 0x3CDB6DB7, 0xB4, -.0200893f},
                 {448, 100, 0x3F800000, 0x6C, 96},
                 {.02f, .013f, 0x383B3EE7, 0x79, .0128571f},
                 {1, -1, 0x3B124925, 0xFE, -1}};

  for (const auto& v : vectors) {
    for (const Fp8QuantOptions& options : {Fp8QuantOptions{}, kFp8PerToken}) {
      const Quantised q = quantise_pair(v.amax, v.x, options);
      EXPECT_EQ(float_bits(q.scale), v.scale_bits) << v.amax;
      EXPECT_EQ(q.code.bits, v.code) << v.amax << ", " << v.x;
      EXPECT_NEAR(q.value, v.value, 1e-5 * std::fabs(v.value)) << v.amax << ", " << v.x;
    }
  }
}

// ---- blocks ----

TEST(Fp8Blocks, DequantiseAsThePublishedVectors) {
  const struct {
    int code;
    uint32_t scale_bits;
    float product;
    uint16_t bf16;
  } vectors[] = {{0x7E, 0x395F58C1, .0954240f, 0x3DC3},
                 {0xB1, 0x395F58C1, -1.198125e-4f, 0xB8FB},
                 {0x08, 0x395F58C1, 3.328125e-6f, 0x365F},
                 {0x01, 0x3A902DE0, 2.148437e-6f, 0x3610},
                 {0xC5, 0x3A000000, -.0015869f, 0xBAD0}};

  for (const auto& v : vectors) {
    const E4m3 code{static_cast<uint8_t>(v.code)};
    const float scale = float_from_bits(v.scale_bits);
    float out = kNan;
    fp8_dequantize_blocks(&code, &scale, 1, 1, &out);
    EXPECT_NEAR(out, v.product, 5e-5 * std::fabs(v.product));
    EXPECT_EQ(bf16_from_float(out).bits, v.bf16);
  }
}

TEST(Fp8Blocks, ScaleEveryBlockByItsOwnMaximumAtAllEdges) {
  for (const int64_t n : {1, 2, 127, 128, 129, 300}) {
    for (const int64_t k : {1, 3, 128, 131, 257}) {
      const auto weights = test_matrix(n, k, static_cast<uint64_t>(1000 * n + k));
      const int64_t blocks_k = ceil_div<int64_t>(k, 128);
      std::vector<E4m3> codes(weights.size());
      std::vector<float> scales(static_cast<size_t>(ceil_div<int64_t>(n, 128) * blocks_k), kNan);
      std::vector<float> decoded(weights.size(), kNan);
      std::vector<double> amax(scales.size());
      for (int64_t i = 0; i < n * k; ++i) {
        double& block = amax[static_cast<size_t>(i / k / 128 * blocks_k + i % k / 128)];
        block = std::max(block, std::fabs(static_cast<double>(weights[static_cast<size_t>(i)])));
      }

      ASSERT_TRUE(fp8_quantize_blocks(weights.data(), n, k, Fp8QuantOptions::Rounding::kNone,
                                      codes.data(), scales.data())
                      .ok());
      fp8_dequantize_blocks(codes.data(), scales.data(), n, k, decoded.data());

      for (size_t b = 0; b < scales.size(); ++b) {
        ASSERT_EQ(scales[b], static_cast<float>(amax[b] / 448)) << n << "x" << k;
      }
      for (int64_t i = 0; i < n * k; ++i) {
        const double scale = scales[static_cast<size_t>(i / k / 128 * blocks_k + i % k / 128)];
        const double w = weights[static_cast<size_t>(i)];
        ASSERT_LE(std::fabs(decoded[static_cast<size_t>(i)] - w),
                  half_step(std::fabs(w / scale)) * scale * 1.00001);
      }
    }
  }
}

TEST(Fp8Blocks, WithPowerOfTwoScalesSurviveTheTripThroughBytes) {
  const int64_t n = 200, k = 260;
  const auto weights = test_matrix(n, k, 8);
  std::vector<E4m3> codes(weights.size());
  std::vector<float> scales(6), from_float(weights.size()), from_bytes(weights.size());
  std::vector<Ue8m0> bytes(6);

  ASSERT_TRUE(fp8_quantize_blocks(weights.data(), n, k, Fp8QuantOptions::Rounding::kPowerOfTwoUp,
                                  codes.data(), scales.data())
                  .ok());
  ASSERT_TRUE(fp8_scales_to_ue8m0(scales, bytes).ok());
  fp8_dequantize_blocks(codes.data(), scales.data(), n, k, from_float.data());
  fp8_dequantize_blocks(codes.data(), bytes.data(), n, k, from_bytes.data());

  EXPECT_EQ(from_float, from_bytes);
}

TEST(Fp8Blocks, RefuseWeightsThatAreNotFinite) {
  std::vector<float> weights(6, 1.0f);
  std::vector<E4m3> codes(6);
  float scale = 0;
  weights[4] = kInf;
  const Status status = fp8_quantize_blocks(weights.data(), 2, 3, Fp8QuantOptions::Rounding::kNone,
                                            codes.data(), &scale);
  EXPECT_EQ(status.code(), StatusCode::kNumerical);
  EXPECT_THAT(status.message(), HasSubstr("row 1, column 1 is inf"));
}

TEST(Fp8Blocks, OfZerosHaveAScaleAndCodesZero) {
  const std::vector<float> weights(9, 0.0f);
  std::vector<E4m3> codes(9, E4m3{0x7F});
  float scale = kNan;
  ASSERT_TRUE(fp8_quantize_blocks(weights.data(), 3, 3, Fp8QuantOptions::Rounding::kNone,
                                  codes.data(), &scale)
                  .ok());
  EXPECT_EQ(scale, kTiny);
  EXPECT_EQ(codes, std::vector<E4m3>(9, E4m3{0}));
}

TEST(Fp8ScalesToUe8m0, NamesTheFirstScaleThatIsNoPowerOfTwo) {
  const float scales[] = {1.0f, 0x1p-20f, 0.3f, 0.7f};
  Ue8m0 bytes[4];
  const Status status = fp8_scales_to_ue8m0(scales, bytes);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("scale 2 is 0.3"));
}

TEST(Fp8Groups, WithUe8m0BytesDecodeAsWithFloats) {
  const int64_t m = 3, k = 300;
  const auto x = test_matrix(m, k, 4);
  std::vector<E4m3> codes(x.size());
  std::vector<float> scales(9), from_float(x.size()), from_bytes(x.size());
  std::vector<Ue8m0> bytes(9);
  fp8_quantize_groups(x.data(), m, k, 128, kFp8V32DemoUe8m0, codes.data(), scales.data());
  ASSERT_TRUE(fp8_scales_to_ue8m0(scales, bytes).ok());
  fp8_dequantize_groups(codes.data(), scales.data(), m, k, 128, from_float.data());
  fp8_dequantize_groups(codes.data(), bytes.data(), m, k, 128, from_bytes.data());
  EXPECT_EQ(from_float, from_bytes);
}

// ---- mxfp8 ----

TEST(Mxfp8, TakesTheLeastPowerOfTwoThatDoesNotSaturate) {
  struct Case {
    float amax;
    int exponent;
  };

  for (const Case c : {Case{448.0f, 0}, Case{449.0f, 1}, Case{1.0f, -8}, Case{1.75f, -8},
                       Case{1.76f, -7}, Case{0x1.cp100f, 92}, Case{0x1.fp127f, 120}}) {
    const float x[3] = {c.amax, -c.amax, c.amax / 3};
    E4m3 codes[3];
    Ue8m0 scale{};
    mxfp8_quantize(x, 1, 3, codes, &scale);
    EXPECT_EQ(int{scale.bits} - 127, c.exponent) << c.amax;
    EXPECT_LE(std::fabs(to_float(codes[0])), kE4m3Max);
    EXPECT_EQ(to_float(codes[1]), -to_float(codes[0]));
    EXPECT_NEAR(to_float(codes[2]) * to_float(scale), x[2], c.amax / 48) << c.amax;
  }
}

TEST(Mxfp8, EveryRowHasAScaleForEachPartOf32Columns) {
  const int64_t n = 3, k = 70;
  auto x = test_matrix(n, k, 8);
  std::fill(x.begin() + k + 32, x.begin() + k + 64, 0.0f);
  std::vector<E4m3> codes(x.size());
  std::vector<Ue8m0> scales(9);
  std::vector<float> decoded(x.size());
  mxfp8_quantize(x.data(), n, k, codes.data(), scales.data());
  fp8_dequantize_groups(codes.data(), scales.data(), n, k, kMxfp8Block, decoded.data());
  EXPECT_EQ(scales[4].bits, 1);  // zeros
  for (int64_t i = 0; i < n * k; ++i) {
    const auto at = static_cast<size_t>(i);
    const double scale = to_float(scales[static_cast<size_t>(i / k * 3 + i % k / 32)]);
    EXPECT_LE(std::fabs(double{decoded[at]} - x[at]), scale * half_step(std::fabs(x[at]) / scale))
        << i;
  }
}

/// All codes and all scales whose product lies within the normal range of bf16.
TEST(Mxfp8, WeightsAreExactInBf16) {
  int exact = 0;
  for (int byte = 0; byte < 255; ++byte) {
    for (int code = 0; code < 256; ++code) {
      const E4m3 value{static_cast<uint8_t>(code)};
      const double weight = std::ldexp(double{to_float(value)}, byte - 127);
      if (!(std::fabs(weight) >= 0x1p-126 && std::fabs(weight) < 0x1p128)) continue;
      ASSERT_EQ(double{to_float(bf16_from_float(static_cast<float>(weight)))}, weight);
      ++exact;
    }
  }
  EXPECT_EQ(exact, 63132);
}

// ---- static scale ----

TEST(Fp8Static, MatchesThePublishedVectors) {
  const struct {
    float scale, x;
    int code;
    float value;
  } vectors[] = {{.02f, 1, 0x64, .96f},
                 {.02f, 9.5f, 0x7E, 8.96f},
                 {.02f, -.0031f, 0xA2, -.003125f},
                 {.5f, .3f, 0x32, .3125f},
                 {1, 77, 0x6A, 80}};

  for (const auto& v : vectors) {
    E4m3 code{};
    float value = kNan;
    fp8_quantize_static({&v.x, 1}, v.scale, {&code, 1});
    fp8_dequantize_static({&code, 1}, v.scale, {&value, 1});
    EXPECT_EQ(code.bits, v.code) << v.x;
    EXPECT_NEAR(value, v.value, 1e-6 * std::fabs(v.value)) << v.x;
  }
}

TEST(Fp8Static, RequantisesToALargerScaleByRoundingTheValueAnew) {
  std::vector<E4m3> codes;
  for (unsigned code = 0; code < 256; ++code)
    codes.push_back(E4m3{static_cast<uint8_t>(code)});
  const auto original = codes;

  fp8_requantize_static(codes, 0.25f, 1.0f);

  for (size_t i = 0; i < codes.size(); ++i) {
    EXPECT_EQ(codes[i], e4m3_from_float(to_float(original[i]) / 4)) << i;
  }
}

TEST(Fp8Static, RequantisingToTheSameScaleChangesNothingButNanSigns) {
  for (unsigned code = 0; code < 256; ++code) {
    E4m3 codes[1] = {{static_cast<uint8_t>(code)}};
    fp8_requantize_static(codes, 0.37f, 0.37f);
    EXPECT_EQ(codes[0].bits, code == 0xFF ? 0x7F : code);
  }
}

// ---- the 656-byte row ----

TEST(DsMlaRow, LiesAsTheLayoutSays) {
  EXPECT_EQ(kDsMlaScaleOffset, 512);
  EXPECT_EQ(kDsMlaRopeOffset, 528);
  std::array<float, 512> latent{};
  std::array<Bf16, 64> rope{};
  for (size_t tile = 0; tile < 4; ++tile)
    latent[tile * 128 + tile] = 448.0f * std::ldexp(1.0f, static_cast<int>(tile));
  for (size_t i = 0; i < 64; ++i)
    rope[i] = Bf16{static_cast<uint16_t>(0x3F80 + i)};
  std::vector<uint8_t> row(656 + 2, 0xCD);

  ds_mla_pack_row(latent.data(), rope.data(), DsMlaScale::kAmax, row.data() + 1);

  const uint8_t* bytes = row.data() + 1;  // odd address: rows need no alignment
  for (size_t tile = 0; tile < 4; ++tile) {
    EXPECT_EQ(bytes[tile * 128 + tile], 0x7E);
    float scale = 0;
    std::memcpy(&scale, bytes + 512 + 4 * tile, 4);
    EXPECT_EQ(scale, std::ldexp(1.0f, static_cast<int>(tile)));
  }
  EXPECT_EQ(bytes[528], 0x80);
  EXPECT_EQ(bytes[529], 0x3F);
  EXPECT_EQ(bytes[654], 0x80 + 63);
  EXPECT_EQ(row.front(), 0xCD);
  EXPECT_EQ(row.back(), 0xCD);
}

TEST(DsMlaRow, MatchesThePublishedVectors) {
  const struct {
    float amax, x;
    uint32_t scale_bits;
    int code;
    float value;
    float power_scale;
    int power_code;
    float power_value;
  } vectors[] = {{3.5f, 1, 0x3C000000, 0x70, 1, 0x1p-7f, 0x70, 1},
                 {.9f, -.33f, 0x3B03A83A, 0xF2, -.3214286f, 0x1p-8f, 0xEB, -.34375f},
                 {12, 5, 0x3CDB6DB7, 0x74, 5.142857f, 0x1p-5f, 0x72, 5},
                 {.02f, .013f, 0x383B3EE7, 0x79, .0128571f, 0x1p-13f, 0x6D, .0126953f},
                 {1e-4f, 5e-5f, 0x346FACAD, 0x76, 5e-5f, 0x1p-13f, 0x2D, 4.9591064e-5f}};

  for (const auto& v : vectors) {
    std::array<float, 512> latent{}, decoded{};
    std::array<Bf16, 64> rope{}, rope_back{};
    std::array<uint8_t, 656> row{};
    latent[256] = v.amax;  // tile 2
    latent[383] = v.x;
    ds_mla_pack_row(latent.data(), rope.data(), DsMlaScale::kAmax, row.data());
    ds_mla_unpack_row(row.data(), decoded.data(), rope_back.data());
    float scale = 0;
    std::memcpy(&scale, row.data() + 512 + 8, 4);
    EXPECT_EQ(float_bits(scale), v.scale_bits) << v.amax;
    EXPECT_EQ(row[383], v.code) << v.amax;
    EXPECT_NEAR(decoded[383], v.value, 2e-5 * std::fabs(v.value)) << v.amax;

    ds_mla_pack_row(latent.data(), rope.data(), DsMlaScale::kPowerOfTwo, row.data());
    ds_mla_unpack_row(row.data(), decoded.data(), rope_back.data());
    std::memcpy(&scale, row.data() + 512 + 8, 4);
    EXPECT_EQ(scale, v.power_scale) << v.amax;
    EXPECT_EQ(row[383], v.power_code) << v.amax;
    EXPECT_NEAR(decoded[383], v.power_value, 2e-5 * std::fabs(v.power_value)) << v.amax;
  }
}

TEST(DsMlaRow, RoundTripsZeroTilesAndTheRotaryKey) {
  std::array<float, 512> latent{}, decoded{};
  std::array<Bf16, 64> rope{}, rope_back{};
  for (size_t i = 0; i < 64; ++i)
    rope[i] = bf16_from_float(static_cast<float>(i) - 31.5f);
  for (const DsMlaScale rule : {DsMlaScale::kAmax, DsMlaScale::kPowerOfTwo}) {
    std::array<uint8_t, 656> row{};
    decoded.fill(kNan);
    ds_mla_pack_row(latent.data(), rope.data(), rule, row.data());
    ds_mla_unpack_row(row.data(), decoded.data(), rope_back.data());
    EXPECT_EQ(decoded, latent);
    EXPECT_EQ(rope_back, rope);
  }
}

}  // namespace
}  // namespace fathom
