#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/conformance/operands/generate.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr Nvfp4ScaleLayout kSwizzled = Nvfp4ScaleLayout::kSwizzled128x4;
constexpr Nvfp4ScaleLayout kRowMajor = Nvfp4ScaleLayout::kRowMajor;

/// Rows of every kind of test data, over a wide range of sizes that f16 can hold.
void fill_with_all_kinds(TestTensor& x, Rng& rng) {
  const int64_t K = x.view().dim(1);
  std::vector<float> row(static_cast<size_t>(K));
  for (int64_t t = 0; t < x.view().dim(0); ++t) {
    const double scale = std::ldexp(1.0, static_cast<int>(rng.next_below(14)) - 8);
    generate_row({.dist = Dist::kMixedRows, .scale = scale}, t, rng, row);
    for (int64_t k = 0; k < K; ++k)
      x.set(t * K + k, row[static_cast<size_t>(k)]);
  }
}

/// Codes and row-major scales of x.
struct Plain {
  TestTensor gs;
  TestTensor q;
  TestTensor scales;

  Plain(int64_t T, int64_t K, float global)
      : gs({1}, Format::kF32, global),
        q({T, K / 2}, Format::kU8),
        scales({T, K / 16}, Format::kE4m3) {}

  void run(TestExec& ex, const std::string& variant, const TestTensor& x) {
    FATHOM_EXPECT_OK(launch<Nvfp4Quant>(ex.with("nvfp4_quant", variant), "test",
                                        {.x = x.view(),
                                         .gs = gs.view(),
                                         .q = q.view(),
                                         .scales = scales.view(),
                                         .layout = kRowMajor}));
  }

  double value(int64_t i) const {
    const uint8_t* codes = q.view().as<uint8_t>();
    const double scale = double{scales[i / 16]} / double{gs[0]};
    return double{to_float(unpack_e2m1(codes, i))} * scale;
  }
};

TEST(Nvfp4Quant, GivesTheBitsOfTheFormatsRecipe) {
  TestExec ex;
  Rng rng(41, 1);
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (const float gs : {1.0f, 448.0f * 6.0f / 3.7f, 3e-5f, 2e7f}) {
      for (int64_t K : {16, 64, 240, 256, 272, 528}) {
        constexpr int64_t T = 18;
        TestTensor x({T, K}, format);
        fill_with_all_kinds(x, rng);
        std::vector<uint8_t> codes(static_cast<size_t>(T * K / 2));
        std::vector<E4m3> scales(static_cast<size_t>(T * K / 16));
        nvfp4_quantize_activations(x.values().data(), T, K, gs, codes.data(), scales.data());
        for (const std::string& variant : variants_of<Nvfp4Quant>()) {
          Plain out(T, K, gs);
          out.run(ex, variant, x);

          for (size_t i = 0; i < codes.size(); ++i)
            ASSERT_EQ(out.q.view().as<uint8_t>()[i], codes[i]) << variant << ", byte " << i;
          for (size_t i = 0; i < scales.size(); ++i)
            ASSERT_EQ(out.scales.view().as<E4m3>()[i], scales[i]) << variant << ", block " << i;
        }
      }
    }
  }
}

TEST(Nvfp4Quant, EncodesEveryBf16AsTheFormatDoes) {
  TestExec ex;
  // A block holds 6 * 448 and fifteen others, so that its scale is 448 and the factor 1 / 448:
  // codes see every quotient, ties and both signs of zero included.
  constexpr int64_t kRows = 4370;  // 15 of the 65,536 codes in each, but for NaN
  TestTensor x({kRows, 16}, Format::kBf16);
  for (int64_t i = 0; i < kRows * 15; ++i) {
    const auto code = static_cast<uint16_t>(std::min<int64_t>(i, 65535));
    const float value = to_float(Bf16{code});
    const bool fits = std::fabs(value) <= 6.0f * 448.0f;  // false for NaN
    x.view().as<Bf16>()[i / 15 * 16 + i % 15 + 1] = fits ? Bf16{code} : Bf16{0};
  }
  for (int64_t r = 0; r < kRows; ++r)
    x.set(r * 16, 6.0f * 448.0f);
  for (const std::string& variant : variants_of<Nvfp4Quant>()) {
    Plain out(kRows, 16, 1.0f);
    out.run(ex, variant, x);

    const float factor = 1.0f / 448.0f;
    for (int64_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(unpack_e2m1(out.q.view().as<uint8_t>(), i), e2m1_from_float(x[i] * factor))
          << variant << ", value " << x[i];
    }
  }
}

TEST(Nvfp4Quant, DequantisesWithinHalfAStep) {
  TestExec ex;
  Rng rng(42, 1);
  constexpr int64_t T = 60, K = 256;
  for (const std::string& variant : variants_of<Nvfp4Quant>()) {
    for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
      TestTensor x({T, K}, format);
      fill_with_all_kinds(x, rng);
      float amax = 0;
      for (int64_t i = 0; i < x.size(); ++i)
        amax = std::max(amax, std::fabs(x[i]));
      Plain out(T, K, 448.0f * 6.0f / amax);
      out.run(ex, variant, x);

      for (int64_t i = 0; i < x.size(); ++i) {
        // The step between 4 and 6 is 2; a scale rounded down among the subnormals clips by up to
        // 6 * 2^-10 more.
        const double gs = double{out.gs[0]};
        const double bound = (double{out.scales[i / 16]} + 6 * 0x1p-10) / gs * (1 + 1e-5);
        ASSERT_NEAR(out.value(i), double{x[i]}, bound) << variant << ", " << format_name(format);
      }
    }
  }
}

TEST(Nvfp4Quant, ABlockOfZerosAndATinyOneHaveScaleZero) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4Quant>()) {
    TestTensor x({1, 48}, Format::kBf16);
    x.set(16, 0x1p-12f);  // a sixth of it rounds to 0 in E4M3
    x.set(32, 6.0f);
    Plain out(1, 48, 1.0f);
    out.run(ex, variant, x);

    EXPECT_EQ(out.scales.values(), (std::vector<float>{0.0f, 0.0f, 1.0f}));
    for (int64_t i = 0; i < 32; ++i)
      EXPECT_EQ(out.value(i), 0.0);
    EXPECT_EQ(out.value(32), 6.0);
  }
}

TEST(Nvfp4Quant, NanIsSixAndInfinitySaturates) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4Quant>()) {
    for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
      TestTensor x({1, 32}, format);
      x.set(0, NAN);
      x.set(1, 3.0f);
      x.set(16, -INFINITY);
      x.set(17, 1.0f);
      Plain out(1, 32, 1.0f);
      out.run(ex, variant, x);

      EXPECT_EQ(out.scales.values(), (std::vector<float>{0.5f, 448.0f})) << variant;
      EXPECT_EQ(out.value(0), 3.0);
      EXPECT_EQ(out.value(1), 3.0);
      EXPECT_EQ(out.value(16), -6.0 * 448.0);
      EXPECT_EQ(out.value(17), 0.0);
    }
  }
}

TEST(Nvfp4Quant, SwizzledScalesAreTheLinearOnesMoved) {
  TestExec ex;
  Rng rng(43, 1);
  constexpr int64_t T = 150, K = 336, kBlocks = K / 16;
  TestTensor x({T, K}, Format::kBf16);
  fill_with_all_kinds(x, rng);
  for (const std::string& variant : variants_of<Nvfp4Quant>()) {
    Plain out(T, K, 100.0f);
    out.run(ex, variant, x);
    const TestTensor q({T, K / 2}, Format::kU8);
    const TestTensor swizzled({256, align_up<int64_t>(kBlocks, 4)}, Format::kE4m3);
    FATHOM_EXPECT_OK(launch<Nvfp4Quant>(
        ex.with("nvfp4_quant", variant), "test",
        {.x = x.view(), .gs = out.gs.view(), .q = q.view(), .scales = swizzled.view()}));

    std::vector<uint8_t> linear(T * kBlocks);
    unswizzle_128x4(swizzled.view().as<uint8_t>(), T, kBlocks, linear.data());
    EXPECT_EQ(q.bytes(), out.q.bytes());
    for (size_t i = 0; i < linear.size(); ++i)
      ASSERT_EQ(linear[i], out.scales.view().as<uint8_t>()[i]) << i;
  }
}

TEST(Nvfp4Quant, RefusesAGlobalScaleThatIsNoneAndScalesOfAnotherShape) {
  TestExec ex;
  const TestTensor x({3, 32}, Format::kBf16);
  const TestTensor q({3, 16}, Format::kU8);
  const TestTensor scales({3, 2}, Format::kE4m3);
  const TestTensor zero({1}, Format::kF32, 0.0f);
  Nvfp4Quant::Args args{.x = x.view(),
                        .gs = zero.view(),
                        .q = q.view(),
                        .scales = scales.view(),
                        .layout = kRowMajor};

  Status status = launch<Nvfp4Quant>(*ex, "test", args);
  EXPECT_NE(status.message().find("gs[0] is 0"), std::string::npos) << status.message();

  args.layout = kSwizzled;
  status = launch<Nvfp4Quant>(*ex, "test", args);
  EXPECT_NE(status.message().find("the layout needs 128 rows"), std::string::npos)
      << status.message();
}

// ---- experts ----

/// Three experts with 2, 0 and 130 rows, the second without a place for scales.
struct Experts {
  static constexpr int64_t R = 132, K = 48;
  TestTensor x{{R, K}, Format::kBf16};
  TestTensor gs{{3}, Format::kF32, {100.0f, 7.0f, 300.0f}};
  TestTensor offsets{{4}, Format::kI32, {0, 2, 2, 132}};
  TestTensor scale_offsets{{4}, Format::kI32, {0, 128, 128, 384}};
  TestTensor q{{R, K / 2}, Format::kU8};
  TestTensor scales{{384, 4}, Format::kE4m3};

  Experts() {
    Rng rng(44, 1);
    fill_with_all_kinds(x, rng);
  }

  Nvfp4QuantExperts::Args args() const {
    return {.x = x.view(),
            .gs = gs.view(),
            .offsets = offsets.view(),
            .scale_offsets = scale_offsets.view(),
            .row_map = {},
            .q = q.view(),
            .scales = scales.view()};
  }
};

TEST(Nvfp4QuantExperts, QuantisesEachExpertAsAPlainTensor) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4QuantExperts>()) {
    const Experts all;
    FATHOM_EXPECT_OK(
        launch<Nvfp4QuantExperts>(ex.with("nvfp4_quant_experts", variant), "test", all.args()));

    for (int64_t e : {0, 2}) {
      const auto begin = static_cast<int64_t>(all.offsets[e]);
      const int64_t rows = static_cast<int64_t>(all.offsets[e + 1]) - begin;
      const TestTensor q({rows, Experts::K / 2}, Format::kU8);
      const TestTensor scales({align_up<int64_t>(rows, 128), 4}, Format::kE4m3);
      const TestTensor gs({1}, Format::kF32, all.gs[e]);
      FATHOM_EXPECT_OK(launch<Nvfp4Quant>(*ex, "test",
                                          {.x = slice_rows(all.x.view(), begin, rows),
                                           .gs = gs.view(),
                                           .q = q.view(),
                                           .scales = scales.view()}));
      const auto* codes = all.q.view().row<uint8_t>(begin);
      const auto* region =
          all.scales.view().row<uint8_t>(static_cast<int64_t>(all.scale_offsets[e]));
      EXPECT_TRUE(std::equal(codes, codes + q.size(), q.view().as<uint8_t>())) << variant;
      EXPECT_TRUE(std::equal(region, region + scales.size(), scales.view().as<uint8_t>()));
    }
  }
}

TEST(Nvfp4QuantExperts, GatheringEqualsQuantisingGatheredRows) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4QuantExperts>()) {
    const Experts all;
    TestTensor map({Experts::R}, Format::kI32);
    TestTensor gathered({Experts::R, Experts::K}, Format::kBf16);
    for (int64_t i = 0; i < Experts::R; ++i) {
      map.set(i, static_cast<float>(i * 5 % 11));
      for (int64_t k = 0; k < Experts::K; ++k)
        gathered.set(i * Experts::K + k, all.x[i * 5 % 11 * Experts::K + k]);
    }
    const Experts expected;
    Exec& exec = ex.with("nvfp4_quant_experts", variant);
    Nvfp4QuantExperts::Args args = expected.args();
    args.x = gathered.view();
    FATHOM_EXPECT_OK(launch<Nvfp4QuantExperts>(exec, "test", args));
    args = all.args();
    args.x = slice_rows(all.x.view(), 0, 11);
    args.row_map = map.view();
    FATHOM_EXPECT_OK(launch<Nvfp4QuantExperts>(exec, "test", args));

    EXPECT_EQ(all.q.bytes(), expected.q.bytes());
    EXPECT_EQ(all.scales.bytes(), expected.scales.bytes());
  }
}

TEST(Nvfp4QuantExperts, LeavesRowsOfNoExpertAlone) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4QuantExperts>()) {
    Experts all;
    all.offsets.set(0, 1.0f);
    all.offsets.set(3, 131.0f);
    for (int64_t i = 0; i < all.q.size(); ++i)
      all.q.set(i, 0x5A);

    FATHOM_EXPECT_OK(
        launch<Nvfp4QuantExperts>(ex.with("nvfp4_quant_experts", variant), "test", all.args()));

    for (int64_t row : {int64_t{0}, Experts::R - 1}) {
      for (int64_t i = 0; i < Experts::K / 2; ++i)
        EXPECT_EQ(all.q[row * Experts::K / 2 + i], 0x5A);
    }
  }
}

TEST(Nvfp4QuantExperts, RefusesRegionsThatOverlapAndRowsOutsideOfTheInput) {
  TestExec ex;
  Experts all;
  all.scale_offsets.set(3, 256.0f);  // 130 rows need 256 scale rows from 128 on
  Status status = launch<Nvfp4QuantExperts>(*ex, "test", all.args());
  EXPECT_NE(status.message().find("130 rows need 256 scale rows"), std::string::npos)
      << status.message();

  all.scale_offsets.set(3, 384.0f);
  all.scale_offsets.set(2, 100.0f);
  status = launch<Nvfp4QuantExperts>(*ex, "test", all.args());
  EXPECT_NE(status.message().find("from a multiple of 128"), std::string::npos) << status.message();

  const TestTensor map({Experts::R}, Format::kI32, static_cast<float>(Experts::R));
  Nvfp4QuantExperts::Args args = all.args();
  args.row_map = map.view();
  status = launch<Nvfp4QuantExperts>(*ex, "test", args);
  EXPECT_NE(status.message().find("row_map[0] is 132 but x has rows 0..131"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace fathom
