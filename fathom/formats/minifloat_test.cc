#include "fathom/formats/minifloat.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The magnitude of a code from its fields, in double, by the definition of a binary format.
double magnitude_from_fields(unsigned code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits);
  const double fraction = std::ldexp(code & ((1u << mantissa_bits) - 1u), -mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - bias)
                       : std::ldexp(1.0 + fraction, exponent - bias);
}

/// The magnitudes of codes 0 .. largest, ascending.
std::vector<double> magnitudes(unsigned largest, int exponent_bits, int mantissa_bits) {
  std::vector<double> values;
  for (unsigned code = 0; code <= largest; ++code) {
    values.push_back(magnitude_from_fields(code, exponent_bits, mantissa_bits));
  }
  return values;
}

/// The code nearest to x >= 0 by comparing distances, ties to the even code. `values` holds one
/// code more than the format, the first that overflows.
unsigned nearest_even(const std::vector<double>& values, double x) {
  const auto above = std::lower_bound(values.begin(), values.end(), x);
  if (above == values.end()) return static_cast<unsigned>(values.size() - 1);
  const auto high = static_cast<unsigned>(above - values.begin());
  if (high == 0) return 0;
  const double to_low = x - values[high - 1];
  const double to_high = values[high] - x;
  if (to_low == to_high) return high % 2 == 0 ? high : high - 1;
  return to_low < to_high ? high - 1 : high;
}

/// Values at, beside and between all codes, and a seeded sample of all floats.
std::vector<float> probes(const std::vector<double>& values) {
  std::vector<float> out;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    for (const double point : {values[i], (values[i] + values[i + 1]) / 2}) {
      const auto x = static_cast<float>(point);
      EXPECT_EQ(static_cast<double>(x), point) << "a midpoint is not a float";
      out.insert(out.end(), {x, std::nextafter(x, kInf), std::nextafter(x, 0.0f)});
    }
  }
  Rng rng(20240611);
  while (out.size() < values.size() * 6 + 300000) {
    const float x = std::fabs(float_from_bits(rng.next_u32()));
    if (std::isfinite(x)) out.push_back(x);
    out.push_back(std::fabs(rng.next_normal()) * static_cast<float>(values[values.size() - 2] / 2));
  }
  return out;
}

struct FormatUnderTest {
  unsigned max_code;  // largest finite magnitude
  int exponent_bits;
  int mantissa_bits;
  unsigned sign_bit;
};

constexpr FormatUnderTest kTestF16{0x7BFF, 5, 10, 0x8000};
constexpr FormatUnderTest kTestE4m3{0x7E, 4, 3, 0x80};
constexpr FormatUnderTest kTestE5m2{0x7B, 5, 2, 0x80};
constexpr FormatUnderTest kTestE2m1{0x7, 2, 1, 0x8};

/// Encodes every probe with both signs; `overflow` is the code of what rounds beyond the maximum.
template <class Encode>
void expect_nearest_even(const FormatUnderTest& format, unsigned overflow, Encode encode) {
  const auto values = magnitudes(format.max_code + 1, format.exponent_bits, format.mantissa_bits);
  for (const float x : probes(values)) {
    unsigned expected = nearest_even(values, x);
    if (expected > format.max_code) expected = overflow;
    ASSERT_EQ(encode(x), expected) << "x = " << x << ", bits " << std::hex << float_bits(x);
    ASSERT_EQ(encode(-x), expected | format.sign_bit) << "x = " << -x;
  }
}

// ---- decoding ----

TEST(Bf16, DecodesAll65536CodesAsTheTopHalfOfAFloat) {
  for (unsigned code = 0; code < 65536; ++code) {
    const float value = to_float(Bf16{static_cast<uint16_t>(code)});
    const unsigned exponent = code >> 7 & 255u;
    if (exponent == 255) {
      ASSERT_EQ(std::isnan(value), (code & 127u) != 0) << code;
      ASSERT_EQ(std::isinf(value), (code & 127u) == 0) << code;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), magnitude_from_fields(code & 0x7FFF, 8, 7));
    }
    ASSERT_EQ(std::signbit(value), code >= 0x8000) << code;
  }
}

TEST(F16, DecodesAll65536CodesByTheirFields) {
  for (unsigned code = 0; code < 65536; ++code) {
    const float value = to_float(F16{static_cast<uint16_t>(code)});
    if ((code & 0x7C00u) == 0x7C00u) {
      ASSERT_EQ(std::isnan(value), (code & 0x3FFu) != 0) << code;
      ASSERT_EQ(std::isinf(value), (code & 0x3FFu) == 0) << code;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), magnitude_from_fields(code & 0x7FFF, 5, 10));
    }
    ASSERT_EQ(std::signbit(value), code >= 0x8000) << code;
  }
}

TEST(E4m3, DecodesAll256CodesByTheirFields) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = to_float(E4m3{static_cast<uint8_t>(code)});
    if ((code & 0x7F) == 0x7F) {
      ASSERT_TRUE(std::isnan(value)) << code;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), magnitude_from_fields(code & 0x7F, 4, 3));
    }
    ASSERT_EQ(std::signbit(value), code >= 0x80) << code;
  }
}

TEST(E4m3, ArithmeticOfTheDeviceEqualsTheTableOfTheHost) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    ASSERT_EQ(float_bits(internal::decode_e4m3(byte)), float_bits(to_float(E4m3{byte}))) << code;
  }
}

TEST(E5m2, DecodesAll256CodesByTheirFields) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = to_float(E5m2{static_cast<uint8_t>(code)});
    if ((code & 0x7C) == 0x7C) {
      ASSERT_EQ(std::isnan(value), (code & 3u) != 0) << code;
      ASSERT_EQ(std::isinf(value), (code & 3u) == 0) << code;
    } else {
      ASSERT_EQ(std::fabs(static_cast<double>(value)), magnitude_from_fields(code & 0x7F, 5, 2));
    }
    ASSERT_EQ(std::signbit(value), code >= 0x80) << code;
  }
}

TEST(E2m1, DecodesAll16CodesAsTheTableOfTheFormat) {
  const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (unsigned code = 0; code < 16; ++code) {
    const float value = to_float(E2m1{static_cast<uint8_t>(code)});
    EXPECT_EQ(std::fabs(static_cast<double>(value)), magnitude[code & 7]) << code;
    EXPECT_EQ(std::signbit(value), code >= 8) << code;
  }
}

TEST(E2m1, ArithmeticOfTheDeviceEqualsTheTableOfTheHost) {
  for (unsigned code = 0; code < 16; ++code) {
    const auto nibble = static_cast<uint8_t>(code);
    EXPECT_EQ(float_bits(internal::decode_e2m1(nibble)), float_bits(to_float(E2m1{nibble})));
  }
}

TEST(Ue8m0, DecodesAll256CodesAsPowersOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const float value = to_float(Ue8m0{static_cast<uint8_t>(code)});
    ASSERT_EQ(static_cast<double>(value), std::ldexp(1.0, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(to_float(Ue8m0{255})));
}

// ---- encoding: nearest, ties to even ----

TEST(Bf16, EncodesToNearestEven) {
  const FormatUnderTest format{0x7F7F, 8, 7, 0x8000};
  expect_nearest_even(format, 0x7F80, [](float x) { return bf16_from_float(x).bits; });
}

TEST(F16, EncodesToNearestEven) {
  expect_nearest_even(kTestF16, 0x7C00, [](float x) { return f16_from_float(x).bits; });
}

TEST(E4m3, EncodesToNearestEvenAndSaturates) {
  expect_nearest_even(kTestE4m3, 0x7E, [](float x) { return e4m3_from_float(x).bits; });
}

TEST(E4m3, UnsaturatedEncodingOverflowsToNan) {
  expect_nearest_even(kTestE4m3, 0x7F, [](float x) { return e4m3_from_float_unsaturated(x).bits; });
}

TEST(E5m2, EncodesToNearestEvenAndSaturates) {
  expect_nearest_even(kTestE5m2, 0x7B, [](float x) { return e5m2_from_float(x).bits; });
}

TEST(E5m2, UnsaturatedEncodingOverflowsToInfinity) {
  expect_nearest_even(kTestE5m2, 0x7C, [](float x) { return e5m2_from_float_unsaturated(x).bits; });
}

TEST(E2m1, EncodesToNearestEvenAndSaturates) {
  expect_nearest_even(kTestE2m1, 0x7, [](float x) { return e2m1_from_float(x).bits; });
}

TEST(Minifloats, RoundTripEveryCodeThatIsNotNan) {
  for (unsigned code = 0; code < 65536; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    if (!std::isnan(to_float(Bf16{bits}))) {
      ASSERT_EQ(bf16_from_float(to_float(Bf16{bits})).bits, bits);
    }
    if (!std::isnan(to_float(F16{bits}))) {
      ASSERT_EQ(f16_from_float(to_float(F16{bits})).bits, bits);
    }
  }
  for (unsigned code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    if (!std::isnan(to_float(E4m3{bits}))) {
      ASSERT_EQ(e4m3_from_float(to_float(E4m3{bits})).bits, bits);
      ASSERT_EQ(e4m3_from_float_unsaturated(to_float(E4m3{bits})).bits, bits);
    }
    if (!std::isnan(to_float(E5m2{bits}))) {
      ASSERT_EQ(e5m2_from_float_unsaturated(to_float(E5m2{bits})).bits, bits);
    }
    if (code < 16) {
      ASSERT_EQ(e2m1_from_float(to_float(E2m1{bits})).bits, bits);
    }
    if (code >= 1 && code <= 254) {
      ASSERT_EQ(ue8m0_round_up(to_float(Ue8m0{bits})).bits, bits);
    }
  }
}

// ---- infinity and NaN ----

TEST(Minifloats, KeepNanWhereTheFormatHasOne) {
  const float signalling = float_from_bits(0x7F800001);
  for (const float nan : {kNan, -kNan, signalling, float_from_bits(0xFFFFFFFF)}) {
    EXPECT_TRUE(std::isnan(to_float(bf16_from_float(nan))));
    EXPECT_TRUE(std::isnan(to_float(f16_from_float(nan))));
    EXPECT_EQ(e4m3_from_float(nan).bits, 0x7F);
    EXPECT_EQ(e4m3_from_float_unsaturated(nan).bits & 0x7F, 0x7F);
    EXPECT_EQ(e5m2_from_float(nan).bits, 0x7F);
    EXPECT_EQ(e5m2_from_float_unsaturated(nan).bits & 0x7F, 0x7F);
    EXPECT_EQ(e2m1_from_float(nan).bits, 7);
    EXPECT_EQ(ue8m0_round_up(nan).bits, 255);
  }
}

TEST(Minifloats, InfinitySaturatesOrStaysAsEachEncodingSays) {
  EXPECT_EQ(bf16_from_float(kInf).bits, 0x7F80);
  EXPECT_EQ(bf16_from_float(-kInf).bits, 0xFF80);
  EXPECT_EQ(f16_from_float(kInf).bits, 0x7C00);
  EXPECT_EQ(f16_from_float(-kInf).bits, 0xFC00);
  EXPECT_EQ(e4m3_from_float(kInf).bits, 0x7E);
  EXPECT_EQ(e4m3_from_float(-kInf).bits, 0xFE);
  EXPECT_EQ(e4m3_from_float_unsaturated(-kInf).bits, 0xFF);
  EXPECT_EQ(e5m2_from_float(-kInf).bits, 0xFB);
  EXPECT_EQ(e5m2_from_float_unsaturated(kInf).bits, 0x7C);
  EXPECT_EQ(e2m1_from_float(kInf).bits, 7);
  EXPECT_EQ(e2m1_from_float(-kInf).bits, 15);
  EXPECT_EQ(ue8m0_round_up(kInf).bits, 254);
}

TEST(F16, OverflowsToInfinityFrom65520On) {
  EXPECT_EQ(f16_from_float(std::nextafter(65520.0f, 0.0f)).bits, 0x7BFF);
  EXPECT_EQ(f16_from_float(65520.0f).bits, 0x7C00);
}

TEST(Minifloats, AreUsableInConstantExpressions) {
  static_assert(bf16_from_float(3.0f).bits == 0x4040);
  static_assert(f16_from_float(kNan).bits == 0x7E00);
  static_assert(e4m3_from_float(kInf).bits == 0x7E && e4m3_from_float(kNan).bits == 0x7F);
  static_assert(e5m2_from_float(0.1f).bits == 0x2E);
  static_assert(e2m1_from_float(5.0f).bits == 6);
  static_assert(ue8m0_round_up(3.0f).bits == 0x81);
  static_assert(to_float(E4m3{0x58}) == 16.0f && to_float(F16{1}) == 0x1p-24f);
}

// ---- published vectors ----

TEST(Bf16, MatchesThePublishedVectors) {
  EXPECT_EQ(bf16_from_float(1.00390625f).bits, 0x3F80);
  EXPECT_EQ(bf16_from_float(1.01171875f).bits, 0x3F82);
  EXPECT_EQ(bf16_from_float(0.1f).bits, 0x3DCD);
  EXPECT_EQ(bf16_from_float(-2.71828f).bits, 0xC02E);
  EXPECT_EQ(bf16_from_float(3.0f).bits, 0x4040);
}

struct Vector {
  float x;
  unsigned code;
  float decoded;
};

TEST(E4m3, MatchesThePublishedVectors) {
  const Vector vectors[] = {
      {1.0f, 0x38, 1.0f},      {0.1f, 0x1D, 0.1015625f},    {-0.3f, 0xAA, -0.3125f},
      {17.0f, 0x58, 16.0f},    {18.0f, 0x59, 18.0f},        {19.0f, 0x5A, 20.0f},
      {447.0f, 0x7E, 448.0f},  {464.0f, 0x7E, 448.0f},      {465.0f, 0x7E, 448.0f},
      {1000.0f, 0x7E, 448.0f}, {0x1p-6f, 0x08, 0x1p-6f},    {0x1p-9f, 0x01, 0x1p-9f},
      {0x1p-10f, 0x00, 0.0f},  {0x1.8p-10f, 0x01, 0x1p-9f}, {3 * 0x1p-10f, 0x02, 0x1p-8f},
      {-0.0f, 0x80, -0.0f}};
  for (const auto& [x, code, decoded] : vectors) {
    EXPECT_EQ(e4m3_from_float(x).bits, code) << x;
    EXPECT_EQ(float_bits(to_float(E4m3{static_cast<uint8_t>(code)})), float_bits(decoded)) << x;
  }
  EXPECT_EQ(e4m3_from_float_unsaturated(464.0f).bits, 0x7E);
  EXPECT_EQ(e4m3_from_float_unsaturated(465.0f).bits, 0x7F);
  EXPECT_EQ(e4m3_from_float_unsaturated(-1000.0f).bits, 0xFF);
}

TEST(E5m2, MatchesThePublishedVectors) {
  const Vector vectors[] = {{1.0f, 0x3C, 1.0f},
                            {0.1f, 0x2E, 0.09375f},
                            {-0.3f, 0xB5, -0.3125f},
                            {1.125f, 0x3C, 1.0f},
                            {1.375f, 0x3E, 1.5f},
                            {61440.0f, 0x7B, 57344.0f},
                            {0x1p-16f, 0x01, 0x1p-16f},
                            {0x1p-17f, 0x00, 0.0f},
                            {0x1.8p-16f, 0x02, 0x1p-15f},
                            // cache entries without a scale
                            {-3.3f, 0xC3, -3.5f},
                            {500.0f, 0x60, 512.0f},
                            {1e-6f, 0x00, 0.0f},
                            {7e-4f, 0x12, 0.000732421875f}};
  for (const auto& [x, code, decoded] : vectors) {
    EXPECT_EQ(e5m2_from_float(x).bits, code) << x;
    EXPECT_EQ(to_float(E5m2{static_cast<uint8_t>(code)}), decoded) << x;
  }
}

TEST(E2m1, MatchesThePublishedVectors) {
  const Vector vectors[] = {{0.25f, 0x0, 0.0f},   {0.75f, 0x2, 1.0f},      {1.25f, 0x2, 1.0f},
                            {1.75f, 0x4, 2.0f},   {2.5f, 0x4, 2.0f},       {3.5f, 0x6, 4.0f},
                            {5.0f, 0x6, 4.0f},    {0.2500001f, 0x1, 0.5f}, {5.0001f, 0x7, 6.0f},
                            {100.0f, 0x7, 6.0f},  {-0.25f, 0x8, -0.0f},    {-0.26f, 0x9, -0.5f},
                            {-0.75f, 0xA, -1.0f}, {-5.0f, 0xE, -4.0f},     {-0.1f, 0x8, -0.0f}};
  for (const auto& [x, code, decoded] : vectors) {
    EXPECT_EQ(e2m1_from_float(x).bits, code) << x;
    EXPECT_EQ(to_float(E2m1{static_cast<uint8_t>(code)}), decoded) << x;
  }
}

TEST(Ue8m0, RoundsScalesUpAsThePublishedVectors) {
  EXPECT_EQ(ue8m0_round_up(1.0f).bits, 0x7F);
  EXPECT_EQ(ue8m0_round_up(0.75f).bits, 0x7F);
  EXPECT_EQ(ue8m0_round_up(float_from_bits(0x3F800001)).bits, 0x80);
  EXPECT_EQ(ue8m0_round_up(3.0f).bits, 0x81);
  EXPECT_EQ(ue8m0_round_up(0.00223214286f).bits, 0x77);
  EXPECT_EQ(ue8m0_round_up(1e-4f / 448.0f).bits, 0x69);
}

TEST(Ue8m0, RoundsUpToTheSmallestPowerNotBelowWithinItsRange) {
  Rng rng(7);
  for (int i = 0; i < 200000; ++i) {
    const float scale = std::fabs(float_from_bits(rng.next_u32()));
    if (!std::isfinite(scale)) continue;
    const int byte = ue8m0_round_up(scale).bits;
    int expected = 1;
    while (expected < 254 && std::ldexp(1.0, expected - 127) < scale)
      ++expected;
    ASSERT_EQ(byte, expected) << scale;
  }
  EXPECT_EQ(ue8m0_round_up(0.0f).bits, 1);
  EXPECT_EQ(ue8m0_round_up(std::numeric_limits<float>::denorm_min()).bits, 1);
  EXPECT_EQ(ue8m0_round_up(std::numeric_limits<float>::max()).bits, 254);
}

TEST(Ue8m0, HoldsExactlyThePositiveNormalPowersOfTwo) {
  for (int code = 1; code <= 254; ++code) {
    EXPECT_TRUE(is_ue8m0(to_float(Ue8m0{static_cast<uint8_t>(code)}))) << code;
  }
  for (const float x : {0.0f, -1.0f, 1.5f, 0x1p-127f, kInf, kNan, 0x1.000002p0f}) {
    EXPECT_FALSE(is_ue8m0(x)) << x;
  }
}

}  // namespace
}  // namespace fathom
