#include "fathom/formats/block/block_fp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using Block = std::array<float, 16>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The codes of a packed row as hex digits, k ascending.
std::string code_text(const uint8_t* packed, int64_t k) {
  std::string text;
  for (int64_t i = 0; i < k; ++i)
    text += "0123456789ABCDEF"[unpack_e2m1(packed, i).bits];
  return text;
}

/// The step to the next E2M1 value above, halved, in units of the scale; 6 and more saturate.
double half_step(double quotient) {
  if (quotient < 2) return 0.25;
  return quotient < 4 ? 0.5 : 1.0;
}

/// Normal and heavy-tailed values, with rows of zeros, of one huge value, and of tiny ones.
std::vector<float> test_matrix(int64_t n, int64_t k, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n * k));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      float x = rng.next_normal();
      if (i % 5 == 1) x = x * x * x;
      if (i % 5 == 2) x = 0.0f;
      if (i % 5 == 3) x *= 1e-7f;
      if (i % 5 == 4 && j == 3) x = 1000.0f;
      values[static_cast<size_t>(i * k + j)] = x;
    }
  }
  return values;
}

// ---- exactness in bf16 ----

TEST(E2m1TimesE4m3, EveryProductIsExactInBf16) {
  int products = 0;
  for (unsigned code = 0; code < 16; ++code) {
    for (unsigned scale = 0; scale < 256; ++scale) {
      if ((scale & 0x7F) == 0x7F) continue;  // NaN
      const float product =
          to_float(E2m1{static_cast<uint8_t>(code)}) * to_float(E4m3{static_cast<uint8_t>(scale)});
      ASSERT_EQ(to_float(bf16_from_float(product)), product) << code << " x " << scale;
      ++products;
    }
  }
  EXPECT_EQ(products, 4064);
}

TEST(E2m1TimesE4m3, SomeProductsDoNotFitE4m3) {
  // 1.5 * 1.125 = 1.6875 needs four mantissa bits; 6 * 448 exceeds the range.
  const float product = to_float(E2m1{3}) * to_float(E4m3{0x39});
  EXPECT_EQ(product, 1.6875f);
  EXPECT_NE(to_float(e4m3_from_float(product)), product);
  EXPECT_NE(to_float(e4m3_from_float(to_float(E2m1{7}) * to_float(E4m3{0x7E}))), 6.0f * 448.0f);
}

// ---- packing ----

TEST(PackE2m1, KeepsEvenCodesInTheLowNibble) {
  EXPECT_EQ(pack_e2m1(E2m1{0x5}, E2m1{0xF}), 0xF5);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto packed = static_cast<uint8_t>(byte);
    EXPECT_EQ(unpack_e2m1(&packed, 0).bits, byte & 15);
    EXPECT_EQ(unpack_e2m1(&packed, 1).bits, byte >> 4);
    EXPECT_EQ(pack_e2m1(unpack_e2m1(&packed, 0), unpack_e2m1(&packed, 1)), packed);
  }
}

// ---- NVFP4 weights ----

struct WeightCase {
  const char* name;
  float amax;
  uint32_t global_bits;
  Block weights;
  uint8_t scale;
  const char* codes;
  std::array<uint8_t, 8> packed;
};

const WeightCase kWeightCases[] = {
    {"A",
     2.0f,
     0x3A430C31,
     {.5f, -1, .25f, 0, .125f, -.0625f, .75f, 1, -.03125f, .3f, -.6f, .9f, -.45f, .2f, .05f, -.8f},
     0x76,
     "5F30296784E7D21E",
     {0xf5, 0x03, 0x92, 0x76, 0x48, 0x7e, 0x2d, 0xe1}},
    {"B", 2.0f, 0x3A430C31, {}, 0x38, "0000000000000000", {}},
    {"C", 2.0f, 0x3A430C31, {1e-6f, -2e-6f}, 0x01, "1B00000000000000", {0xb1}},
    {"D",
     2.0f,
     0x3A430C31,
     {2, -2, 1, .5f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f, .1f},
     0x7E,
     "7F53111111111111",
     {0xf7, 0x35, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11}},
    {"E",
     .5f,
     0x39430C31,
     {0, 1 / 128.f, 2 / 128.f, 3 / 128.f, 4 / 128.f, 5 / 128.f, 6 / 128.f, 7 / 128.f, 8 / 128.f,
      9 / 128.f, 10 / 128.f, 11 / 128.f, 12 / 128.f, 13 / 128.f, 14 / 128.f, 15 / 128.f},
     0x6D,
     "0122344556666777",
     {0x10, 0x22, 0x43, 0x54, 0x65, 0x66, 0x76, 0x77}},
    {"F",
     .147f,
     0x38656042,
     {-.011f, .017f, .004f, -.0021f, .0009f, .013f, -.0155f, .0066f, 0, .0101f, -.0073f, .0034f,
      -.0188f, .0002f, .0121f, -.0049f},
     0x66,
     "E73916F405C2F06B",
     {0x7e, 0x93, 0x61, 0x4f, 0x50, 0x2c, 0x0f, 0xb6}},
};

TEST(Nvfp4Weights, MatchThePublishedVectors) {
  for (const WeightCase& c : kWeightCases) {
    std::array<uint8_t, 8> packed{};
    E4m3 scale{};
    const float global = nvfp4_global_scale(c.amax);

    ASSERT_TRUE(
        nvfp4_quantize_weights(c.weights.data(), 1, 16, global, packed.data(), &scale).ok());

    EXPECT_EQ(float_bits(global), c.global_bits) << c.name;
    EXPECT_EQ(scale.bits, c.scale) << c.name;
    EXPECT_EQ(code_text(packed.data(), 16), c.codes) << c.name;
    EXPECT_EQ(packed, c.packed) << c.name;
  }
}

Block decode(const WeightCase& c) {
  Block out{};
  const E4m3 scale{c.scale};
  nvfp4_dequantize(c.packed.data(), &scale, float_from_bits(c.global_bits), 1, 16, out.data());
  return out;
}

TEST(Nvfp4Dequantize, MatchesThePublishedVectors) {
  const Block a = decode(kWeightCases[0]);
  const Block expected_a = {.5f,  -1,       .25f,      0, .166667f, -.083333f, .666667f, 1,
                            -0.f, .333333f, -.666667f, 1, -.5f,     .166667f,  .083333f, -.666667f};
  for (size_t i = 0; i < 16; ++i)
    EXPECT_NEAR(a[i], expected_a[i], 5e-7) << i;
  EXPECT_TRUE(std::signbit(a[8]));
  const Block f = decode(kWeightCases[5]);
  const Block expected_f = {-.01225f,  .018375f, .00459375f, -.00153125f, .00153125f, .01225f,
                            -.018375f, .006125f, 0,          .0091875f,   -.006125f,  .0030625f,
                            -.018375f, 0,        .01225f,    -.00459375f};
  for (size_t i = 0; i < 16; ++i)
    EXPECT_NEAR(f[i], expected_f[i], 2e-9) << i;
  const Block c = decode(kWeightCases[2]);
  EXPECT_NEAR(c[0], 7.266e-7, 5e-11);
  EXPECT_NEAR(c[1], -2.180e-6, 5e-10);
}

TEST(Nvfp4Dequantize, FormsTheProductOfTheScalesFirst) {
  const auto product = [](uint8_t scale, uint32_t global_bits) {
    const uint8_t one[8] = {0x02};  // code 2 is 1.0
    const E4m3 block_scale{scale};
    float out[16];
    nvfp4_dequantize(one, &block_scale, float_from_bits(global_bits), 1, 16, out);
    return float_bits(out[0]);
  };
  EXPECT_EQ(product(0x7E, 0x3A430C31), 0x3EAAAAABu);  // case D
  EXPECT_EQ(product(0x6D, 0x39430C31), 0x3C9E79E8u);  // case E
  EXPECT_EQ(product(0x66, 0x38656042), 0x3B48B43Au);  // case F
  EXPECT_NEAR(decode(kWeightCases[4])[15], .116071, 5e-7);
}

TEST(Nvfp4Dequantize, TakesCode8AsZero) {
  const uint8_t packed[8] = {0x88, 0x80};
  const E4m3 scale{0x7E};
  float out[16];
  nvfp4_dequantize(packed, &scale, 3.0f, 1, 16, out);
  for (const float x : out)
    EXPECT_EQ(x, 0.0f);
}

TEST(Nvfp4Dequantize, TakesScaleZeroOfOlderExportersAsABlockOfZeros) {
  const uint8_t packed[8] = {0x77, 0xF5, 0x12, 0x34, 0x56, 0x77, 0x99, 0xAB};
  const E4m3 scale{0};
  float out[16];
  nvfp4_dequantize(packed, &scale, 3.0f, 1, 16, out);
  for (const float x : out)
    EXPECT_EQ(x, 0.0f);
}

TEST(Nvfp4Weights, GiveNegativeZeroTheCodeOfZero) {
  const Block weights = {-0.0f, 1.0f, -1e-3f};
  uint8_t packed[8];
  E4m3 scale{};
  ASSERT_TRUE(
      nvfp4_quantize_weights(weights.data(), 1, 16, nvfp4_global_scale(1.0f), packed, &scale).ok());
  EXPECT_EQ(unpack_e2m1(packed, 0).bits, 0);
  EXPECT_EQ(unpack_e2m1(packed, 2).bits, 8)
      << "a negative weight that rounds to zero keeps its sign";
}

TEST(Nvfp4Weights, SaturateWhenTheGlobalScaleWasUnderestimated) {
  const Block weights = {100.0f, -100.0f, 1.0f};
  uint8_t packed[8];
  E4m3 scale{};
  ASSERT_TRUE(
      nvfp4_quantize_weights(weights.data(), 1, 16, nvfp4_global_scale(1.0f), packed, &scale).ok());
  EXPECT_EQ(scale.bits, 0x7E);
  EXPECT_EQ(code_text(packed, 3), "7F7");
}

TEST(Nvfp4GlobalScale, IsNeverZero) {
  EXPECT_EQ(nvfp4_global_scale(0.0f), 1.0f);
  EXPECT_EQ(nvfp4_global_scale(1e-44f), std::numeric_limits<float>::min());
  EXPECT_EQ(nvfp4_global_scale(2688.0f), 1.0f);
}

TEST(Nvfp4Weights, RefuseWhatCannotBeQuantised) {
  std::vector<float> weights(64, 1.0f);
  std::vector<uint8_t> packed(32);
  std::vector<E4m3> scales(4);
  const auto quantize = [&](int64_t n, int64_t k, float global) {
    return nvfp4_quantize_weights(weights.data(), n, k, global, packed.data(), scales.data());
  };
  EXPECT_EQ(quantize(1, 17, 1.0f).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(quantize(1, 17, 1.0f).message(), HasSubstr("got 17"));
  for (const float global : {0.0f, -1.0f, kInf, kNan}) {
    EXPECT_EQ(quantize(2, 32, global).code(), StatusCode::kInvalidArgument) << global;
  }
  for (const float bad : {kInf, -kInf, kNan}) {
    weights[37] = bad;
    EXPECT_EQ(quantize(2, 32, 1.0f).code(), StatusCode::kNumerical);
    EXPECT_THAT(quantize(2, 32, 1.0f).message(), HasSubstr("row 1, column 5"));
  }
}

TEST(Nvfp4Weights, AreWithinHalfAStepOfTheInput) {
  for (const int64_t k : {16, 32, 272}) {
    const int64_t n = 11;
    const auto weights = test_matrix(n, k, 5);
    float amax = 0;
    for (const float w : weights)
      amax = std::max(amax, std::fabs(w));
    const float global = nvfp4_global_scale(amax);
    std::vector<uint8_t> packed(weights.size() / 2);
    std::vector<E4m3> scales(weights.size() / 16);
    std::vector<float> decoded(weights.size(), kNan);

    ASSERT_TRUE(
        nvfp4_quantize_weights(weights.data(), n, k, global, packed.data(), scales.data()).ok());
    nvfp4_dequantize(packed.data(), scales.data(), global, n, k, decoded.data());

    for (size_t i = 0; i < weights.size(); ++i) {
      const double scale = static_cast<double>(to_float(scales[i / 16])) * global;
      const double quotient = std::fabs(weights[i] / scale);
      // A block scale that was rounded down by up to 1/17 leaves quotients up to 6.4.
      ASSERT_LE(quotient, 6.4) << i;
      ASSERT_LE(std::fabs(decoded[i] - weights[i]), half_step(quotient) * scale * 1.000001) << i;
    }
  }
}

TEST(Nvfp4Weights, DecodedValuesQuantiseToThemselves) {
  const int64_t n = 5, k = 64;
  const auto weights = test_matrix(n, k, 9);
  const float global = nvfp4_global_scale(1000.0f);
  std::vector<uint8_t> packed(weights.size() / 2), again(packed);
  std::vector<E4m3> scales(weights.size() / 16), scales_again(scales);
  std::vector<float> decoded(weights.size()), decoded_again(weights.size());

  ASSERT_TRUE(
      nvfp4_quantize_weights(weights.data(), n, k, global, packed.data(), scales.data()).ok());
  nvfp4_dequantize(packed.data(), scales.data(), global, n, k, decoded.data());
  ASSERT_TRUE(
      nvfp4_quantize_weights(decoded.data(), n, k, global, again.data(), scales_again.data()).ok());
  nvfp4_dequantize(again.data(), scales_again.data(), global, n, k, decoded_again.data());

  EXPECT_EQ(decoded, decoded_again);
}

// ---- NVFP4 activations ----

struct ActivationCase {
  const char* name;
  float input_scale;
  Block x;
  uint8_t scale;
  const char* codes;
  Block decoded;
};

const ActivationCase kActivationCases[] = {
    {"a1",
     .004f,
     {3, -1.5f, .5f, .25f, -.125f, 2, 1, -2.5f},
     0x70,
     "7D21864E00000000",
     {3.072f, -1.536f, .512f, .256f, -0.f, 2.048f, 1.024f, -2.048f}},
    {"a2",
     .01f,
     {40, -20, 5, 1, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f, .5f},
     0x7E,
     "7E20000000000000",
     {26.88f, -17.92f, 4.48f}},
    {"a3", .004f, {}, 0x00, "0000000000000000", {}},
    {"a4", .004f, {1e-5f, -1e-5f}, 0x00, "0800000000000000", {}},
    {"a5",
     .0011f,
     {-.8f, .1f * 1 - .8f, .1f * 2 - .8f, .1f * 3 - .8f, .1f * 4 - .8f, .1f * 5 - .8f,
      .1f * 6 - .8f, .1f * 7 - .8f, 0, .1f, .2f, .3f, .4f, .5f, .6f, .7f},
     0x6F,
     "FFEEDCBA02345667",
     {-.792f, -.792f, -.528f, -.528f, -.396f, -.264f, -.198f, -.132f, 0, .132f, .198f, .264f, .396f,
      .528f, .528f, .792f}},
};

TEST(Nvfp4Activations, MatchThePublishedVectors) {
  for (const ActivationCase& c : kActivationCases) {
    uint8_t packed[8];
    E4m3 scale{};
    float decoded[16];

    nvfp4_quantize_activations(c.x.data(), 1, 16, 1.0f / c.input_scale, packed, &scale);
    nvfp4_dequantize(packed, &scale, c.input_scale, 1, 16, decoded);

    EXPECT_EQ(scale.bits, c.scale) << c.name;
    EXPECT_EQ(code_text(packed, 16), c.codes) << c.name;
    for (size_t i = 0; i < 16; ++i)
      EXPECT_NEAR(decoded[i], c.decoded[i], 2e-6) << c.name << i;
  }
}

TEST(Nvfp4Activations, DifferFromWeightsInZeroAndTinyBlocks) {
  const Block zero{}, tiny = {1e-6f, -2e-6f};
  const float global = nvfp4_global_scale(2.0f);
  uint8_t packed[8];
  E4m3 scale{0xFF};
  nvfp4_quantize_activations(zero.data(), 1, 16, 1.0f / global, packed, &scale);
  EXPECT_EQ(scale.bits, 0x00);
  nvfp4_quantize_activations(tiny.data(), 1, 16, 1.0f / global, packed, &scale);
  EXPECT_EQ(scale.bits, 0x00);
}

TEST(Nvfp4Activations, SaturateInfinityAndHideNanFromAmax) {
  const Block x = {kInf, -kInf, 1.0f}, y = {kNan, 6.0f, -3.0f};
  uint8_t packed[8];
  E4m3 scale{};
  nvfp4_quantize_activations(x.data(), 1, 16, 1.0f, packed, &scale);
  EXPECT_EQ(scale.bits, 0x7E);
  EXPECT_EQ(code_text(packed, 3), "7F0");
  nvfp4_quantize_activations(y.data(), 1, 16, 1.0f, packed, &scale);
  EXPECT_EQ(scale.bits, 0x38);
  EXPECT_EQ(code_text(packed, 4), "77D0");
}

TEST(Nvfp4Activations, AreWithinHalfAStepOfTheInput) {
  const int64_t m = 7, k = 208;
  const auto x = test_matrix(m, k, 77);
  const float input_scale = 1000.0f / 2688.0f;
  std::vector<uint8_t> packed(x.size() / 2);
  std::vector<E4m3> scales(x.size() / 16);
  std::vector<float> decoded(x.size(), kNan);

  nvfp4_quantize_activations(x.data(), m, k, 1.0f / input_scale, packed.data(), scales.data());
  nvfp4_dequantize(packed.data(), scales.data(), input_scale, m, k, decoded.data());

  for (size_t i = 0; i < x.size(); ++i) {
    const double scale = static_cast<double>(to_float(scales[i / 16])) * input_scale;
    if (scale == 0.0) {
      ASSERT_EQ(decoded[i], 0.0f) << i;
      ASSERT_LE(std::fabs(x[i]), 6.0 * 0x1p-10 * input_scale * 1.000001) << i;
    } else {
      // Subnormal block scales are coarse: the lowest rounds down from 1.5 steps.
      const double quotient = std::fabs(x[i] / scale);
      ASSERT_LE(quotient, 9.0) << i;
      const double bound = std::max(half_step(quotient), quotient - 6.0);
      ASSERT_LE(std::fabs(decoded[i] - x[i]), bound * scale * 1.000002) << i;
    }
  }
}

// ---- MXFP4 ----

TEST(Mxfp4, MatchesThePublishedVectorsUnderBothRules) {
  const struct {
    float amax, x;
    int ocp_byte, ocp_code;
    float ocp_value;
    int ceil_byte, ceil_code;
    float ceil_value;
  } vectors[] = {{1, .3f, 125, 0x2, .25f, 125, 0x2, .25f},
                 {6, 5, 127, 0x6, 4, 127, 0x6, 4},
                 {7, 6.9f, 127, 0x7, 6, 128, 0x5, 6},
                 {.01f, -.004f, 118, 0xC, -.00390625f, 118, 0xC, -.00390625f},
                 {3, 2.6f, 126, 0x7, 3, 126, 0x7, 3},
                 {100, 33, 131, 0x4, 32, 132, 0x2, 32},
                 {5.9f, -.7f, 127, 0x9, -.5f, 127, 0x9, -.5f}};

  for (const auto& v : vectors) {
    float x[32] = {v.amax, v.x};
    uint8_t packed[16];
    Ue8m0 scale{};
    float decoded[32];
    mxfp4_quantize(x, 1, 32, Mxfp4Rule::kOcpFloor, packed, &scale);
    mxfp4_dequantize(packed, &scale, 1, 32, decoded);
    EXPECT_EQ(scale.bits, v.ocp_byte) << v.amax;
    EXPECT_EQ(unpack_e2m1(packed, 1).bits, v.ocp_code) << v.amax;
    EXPECT_EQ(decoded[1], v.ocp_value) << v.amax;
    mxfp4_quantize(x, 1, 32, Mxfp4Rule::kCeil, packed, &scale);
    mxfp4_dequantize(packed, &scale, 1, 32, decoded);
    EXPECT_EQ(scale.bits, v.ceil_byte) << v.amax;
    EXPECT_EQ(unpack_e2m1(packed, 1).bits, v.ceil_code) << v.amax;
    EXPECT_EQ(decoded[1], v.ceil_value) << v.amax;
  }
}

TEST(Mxfp4Scale, FollowsTheLogarithmsOfBothRules) {
  Rng rng(3);
  for (int i = 0; i < 100000; ++i) {
    const float amax = std::fabs(float_from_bits(rng.next_u32()));
    if (!std::isnormal(amax)) continue;
    int exponent = 0;  // amax = fraction * 2^exponent, fraction in [1/2, 1)
    const double fraction = std::frexp(static_cast<double>(amax), &exponent);
    const int floor_rule = std::clamp(exponent - 1 - 2, -126, 127);
    // ceil(log2(amax/6)): amax <= 6 * 2^e, where 6 = 3/4 * 2^3.
    const int ceil_rule = std::clamp(exponent - (fraction <= 0.75 ? 3 : 2), -126, 127);
    ASSERT_EQ(mxfp4_scale(amax, Mxfp4Rule::kOcpFloor).bits, floor_rule + 127) << amax;
    ASSERT_EQ(mxfp4_scale(amax, Mxfp4Rule::kCeil).bits, ceil_rule + 127) << amax;
  }
}

TEST(Mxfp4Scale, StepsUpJustAboveSixTimesAPowerOfTwo) {
  for (int e = -120; e < 125; ++e) {
    const float edge = std::ldexp(6.0f, e);
    EXPECT_EQ(mxfp4_scale(edge, Mxfp4Rule::kCeil).bits, e + 127);
    EXPECT_EQ(mxfp4_scale(std::nextafter(edge, kInf), Mxfp4Rule::kCeil).bits, e + 128);
    EXPECT_EQ(mxfp4_scale(std::nextafter(edge, 0.0f), Mxfp4Rule::kCeil).bits, e + 127);
  }
}

TEST(Mxfp4, ZeroBlocksHaveAValidScaleAndCodesZero) {
  const float x[32] = {};
  for (const Mxfp4Rule rule : {Mxfp4Rule::kOcpFloor, Mxfp4Rule::kCeil}) {
    uint8_t packed[16];
    std::fill(packed, packed + 16, uint8_t{0xFF});
    Ue8m0 scale{255};
    mxfp4_quantize(x, 1, 32, rule, packed, &scale);
    EXPECT_EQ(scale.bits, 1);
    EXPECT_EQ(code_text(packed, 32), std::string(32, '0'));
  }
}

TEST(Mxfp4, IsWithinHalfAStepOfTheInput) {
  const int64_t n = 10, k = 96;
  const auto x = test_matrix(n, k, 31);
  for (const Mxfp4Rule rule : {Mxfp4Rule::kOcpFloor, Mxfp4Rule::kCeil}) {
    std::vector<uint8_t> packed(x.size() / 2);
    std::vector<Ue8m0> scales(x.size() / 32);
    std::vector<float> decoded(x.size(), kNan);
    mxfp4_quantize(x.data(), n, k, rule, packed.data(), scales.data());
    mxfp4_dequantize(packed.data(), scales.data(), n, k, decoded.data());
    const double largest_quotient = rule == Mxfp4Rule::kCeil ? 6.0 : 8.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double scale = to_float(scales[i / 32]);
      const double quotient = std::fabs(x[i] / scale);
      ASSERT_LE(quotient, largest_quotient) << i;
      const double bound = std::max(half_step(quotient), quotient - 6.0);
      ASSERT_LE(std::fabs(decoded[i] - x[i]), bound * scale) << i;
    }
  }
}

}  // namespace
}  // namespace fathom
