#include "fathom/kernels/quant/token_quant/token_quant.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/integer/group_int.h"
#include "fathom/formats/integer/qserve.h"
#include "fathom/kernels/conformance/operands/generate.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

struct Quantised {
  TestTensor q;
  TestTensor s;

  Quantised(int64_t T, int64_t D) : q({T, D}, Format::kE4m3, NAN), s({T}, Format::kF32, NAN) {}
};

void quantise(TestExec& ex, const std::string& variant, const TestTensor& x, Quantised& out) {
  FATHOM_EXPECT_OK(launch<TokenQuantFp8>(ex.with("token_quant_fp8", variant), "test",
                                         {.x = x.view(), .q = out.q.view(), .s = out.s.view()}));
}

/// Rows of every kind of test data, over a wide range of sizes that f16 can hold.
void fill_with_all_kinds(TestTensor& x, Rng& rng) {
  const int64_t D = x.view().dim(1);
  std::vector<float> row(static_cast<size_t>(D));
  for (int64_t t = 0; t < x.view().dim(0); ++t) {
    const double scale = std::ldexp(1.0, static_cast<int>(rng.next_below(18)) - 12);
    generate_row({.dist = Dist::kMixedRows, .scale = scale}, t, rng, row);
    for (int64_t d = 0; d < D; ++d)
      x.set(t * D + d, row[static_cast<size_t>(d)]);
  }
}

TEST(TokenQuantFp8, GivesTheBitsOfTheFormatsRecipe) {
  TestExec ex;
  Rng rng(21, 1);
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t D : {1, 15, 16, 31, 33, 300}) {
      constexpr int64_t T = 12;
      TestTensor x({T, D}, format);
      fill_with_all_kinds(x, rng);
      std::vector<E4m3> codes(static_cast<size_t>(T * D));
      std::vector<float> scales(T);
      fp8_quantize_groups(x.values().data(), T, D, D, kFp8PerToken, codes.data(), scales.data());
      for (const std::string& variant : variants_of<TokenQuantFp8>()) {
        Quantised out(T, D);
        quantise(ex, variant, x, out);

        for (int64_t i = 0; i < T * D; ++i) {
          ASSERT_EQ(out.q.view().as<E4m3>()[i], codes[static_cast<size_t>(i)])
              << variant << ", " << format_name(format) << ", element " << i << " is " << x[i];
        }
        for (int64_t t = 0; t < T; ++t) {
          bool zeros = true;
          for (int64_t d = 0; d < D; ++d)
            zeros = zeros && x[t * D + d] == 0.0f;
          EXPECT_EQ(out.s[t], zeros ? 0.0f : scales[static_cast<size_t>(t)]) << variant;
        }
      }
    }
  }
}

TEST(TokenQuantFp8, DequantisesWithinHalfAStep) {
  TestExec ex;
  Rng rng(22, 1);
  constexpr int64_t T = 60, D = 257;
  for (const std::string& variant : variants_of<TokenQuantFp8>()) {
    for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
      TestTensor x({T, D}, format);
      fill_with_all_kinds(x, rng);
      Quantised out(T, D);
      quantise(ex, variant, x, out);

      for (int64_t i = 0; i < T * D; ++i) {
        const double s = double{out.s[i / D]};
        const double found = double{out.q[i]} * s;
        const double bound = std::max(std::fabs(double{x[i]}) * 0x1p-4, s * 0x1p-10) * (1 + 1e-6);
        ASSERT_NEAR(found, double{x[i]}, bound) << variant << ", " << format_name(format);
      }
    }
  }
}

TEST(TokenQuantFp8, ZerosHaveScaleZeroAndCodesZero) {
  TestExec ex;
  for (const std::string& variant : variants_of<TokenQuantFp8>()) {
    const TestTensor x({2, 5}, Format::kBf16, {0, 0, 0, 0, 0, 1, 2, 3, 4, 7});
    Quantised out(2, 5);
    quantise(ex, variant, x, out);

    EXPECT_EQ(out.s.values(), (std::vector<float>{0.0f, 7.0f / 448.0f}));
    for (int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(out.q.view().as<uint8_t>()[i], 0);
    EXPECT_EQ(out.q[9], 448.0f);
  }
}

TEST(TokenQuantFp8, SkipsNanInTheMaximumAndKeepsItsCode) {
  TestExec ex;
  for (const std::string& variant : variants_of<TokenQuantFp8>()) {
    for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
      const TestTensor x({2, 3}, format, {NAN, 2.0f, -4.0f, NAN, 0.0f, 0.0f});
      Quantised out(2, 3);
      quantise(ex, variant, x, out);

      EXPECT_EQ(out.s[0], 4.0f / 448.0f);
      EXPECT_TRUE(std::isnan(out.q[0]));
      EXPECT_EQ(out.q[2], -448.0f);
      EXPECT_EQ(out.s[1], 0.0f);
      EXPECT_TRUE(std::isnan(out.q[3]));
      EXPECT_EQ(out.q[4], 0.0f);
    }
  }
}

TEST(TokenQuantFp8, AnInfinityTakesItsRowAlone) {
  TestExec ex;
  for (const std::string& variant : variants_of<TokenQuantFp8>()) {
    const TestTensor x({2, 3}, Format::kBf16, {INFINITY, 2.0f, -4.0f, 1.0f, 2.0f, 4.0f});
    Quantised out(2, 3);
    quantise(ex, variant, x, out);

    EXPECT_EQ(out.s[0], INFINITY);
    EXPECT_TRUE(std::isnan(out.q[0]));
    EXPECT_EQ(out.q[1], 0.0f);
    EXPECT_EQ(out.s[1], 4.0f / 448.0f);
    EXPECT_EQ(out.q[5], 448.0f);
  }
}

// ---- int8 ----

struct Int8Rows {
  TestTensor q;
  TestTensor s;
  TestTensor sums;

  Int8Rows(int64_t T, int64_t D, Format scales)
      : q({T, D}, Format::kI8), s({T}, scales, NAN), sums({T}, Format::kF16, NAN) {}
};

void quantise(TestExec& ex, const std::string& variant, const TestTensor& x, Int8Rows& out) {
  FATHOM_EXPECT_OK(launch<TokenQuantInt8>(
      ex.with("token_quant_int8", variant), "test",
      {.x = x.view(), .q = out.q.view(), .s = out.s.view(), .sums = out.sums.view()}));
}

TEST(TokenQuantInt8, GivesTheBitsOfTheFormatsRecipe) {
  TestExec ex;
  Rng rng(22, 1);
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t D : {1, 15, 16, 31, 33, 300}) {
      constexpr int64_t T = 12;
      TestTensor x({T, D}, format);
      fill_with_all_kinds(x, rng);
      std::vector<int8_t> codes(static_cast<size_t>(T * D));
      std::vector<float> scales(T);
      int8_quantize_rows(x.values().data(), T, D, codes.data(), scales.data());
      for (const std::string& variant : variants_of<TokenQuantInt8>()) {
        Int8Rows out(T, D, Format::kF32);
        quantise(ex, variant, x, out);

        for (int64_t i = 0; i < T * D; ++i) {
          ASSERT_EQ(out.q.view().as<int8_t>()[i], codes[static_cast<size_t>(i)])
              << variant << ", " << format_name(format) << ", element " << i << " is " << x[i];
        }
        EXPECT_EQ(out.s.values(), scales) << variant;
      }
    }
  }
}

TEST(TokenQuantInt8, GivesQserveItsScalesAndTheSumsBeforeQuantisation) {
  TestExec ex;
  Rng rng(23, 1);
  constexpr int64_t T = 12;
  constexpr int64_t D = 301;
  TestTensor x({T, D}, Format::kF16);  // sums of f16 values are exact in double, in any order
  fill_with_all_kinds(x, rng);
  std::vector<int8_t> codes(static_cast<size_t>(T * D));
  std::vector<F16> scales(T), sums(T);
  qserve_quantize_activations(x.values().data(), T, D, codes.data(), scales.data(), sums.data());
  for (const std::string& variant : variants_of<TokenQuantInt8>()) {
    Int8Rows out(T, D, Format::kF16);
    quantise(ex, variant, x, out);

    for (int64_t t = 0; t < T; ++t) {
      EXPECT_EQ(out.s[t], to_float(scales[static_cast<size_t>(t)])) << variant;
      EXPECT_EQ(out.sums[t], to_float(sums[static_cast<size_t>(t)])) << variant;
    }
  }
}

TEST(TokenQuantInt8, RoundsHalvesAwayFromZero) {
  TestExec ex;
  for (const std::string& variant : variants_of<TokenQuantInt8>()) {
    const TestTensor x({1, 6}, Format::kF32, {127.0f, 0.5f, -0.5f, 2.5f, -2.5f, 0.49999997f});
    Int8Rows out(1, 6, Format::kF32);
    quantise(ex, variant, x, out);

    EXPECT_EQ(out.s[0], 1.0f);
    EXPECT_EQ(out.q.values(), (std::vector<float>{127, 1, -1, 3, -3, 0})) << variant;
    EXPECT_EQ(out.sums[0], 127.5f);
  }
}

TEST(TokenQuantInt8, NanHasCodeZeroAndAnInfinityTakesItsRow) {
  TestExec ex;
  for (const std::string& variant : variants_of<TokenQuantInt8>()) {
    const TestTensor x({3, 3}, Format::kBf16,
                       {NAN, 2.0f, -4.0f, INFINITY, 2.0f, -4.0f, 0.0f, 0.0f, 0.0f});
    Int8Rows out(3, 3, Format::kF32);
    quantise(ex, variant, x, out);

    EXPECT_EQ(out.s[0], 4.0f / 127.0f);
    EXPECT_EQ(out.s[1], INFINITY);
    EXPECT_EQ(out.s[2], 1e-10f / 127.0f);
    // 2 * 127/4 = 63.5 in float32.
    EXPECT_EQ(out.q.values(), (std::vector<float>{0, 64, -127, 0, 0, 0, 0, 0, 0})) << variant;
    EXPECT_TRUE(std::isnan(out.sums[0]));
    EXPECT_EQ(out.sums[1], INFINITY);
    EXPECT_EQ(out.sums[2], 0.0f);
  }
}

// ---- one scale for all ----

TEST(TensorQuantFp8, DividesRoundsToEvenAndSaturates) {
  TestExec ex;
  const float e4m3_tie = 17.0f;  // between 16 and 18
  for (const std::string& variant : variants_of<TensorQuantFp8>()) {
    const TestTensor x({2, 3}, Format::kF32, {2 * e4m3_tie, -1000.0f, NAN, INFINITY, 0.0f, -2.0f});
    const TestTensor scale({1}, Format::kF32, {2.0f});
    TestTensor q({2, 3}, Format::kE4m3, NAN);
    FATHOM_EXPECT_OK(launch<TensorQuantFp8>(ex.with("tensor_quant_fp8", variant), "test",
                                            {.x = x.view(), .s = scale.view(), .q = q.view()}));

    EXPECT_EQ(q[0], 16.0f) << variant;
    EXPECT_EQ(q[1], -448.0f) << variant;
    EXPECT_TRUE(std::isnan(q[2])) << variant;
    EXPECT_EQ(q[3], 448.0f) << variant;
    EXPECT_EQ(q[4], 0.0f) << variant;
    EXPECT_EQ(q[5], -1.0f) << variant;
  }
}

}  // namespace
}  // namespace fathom
