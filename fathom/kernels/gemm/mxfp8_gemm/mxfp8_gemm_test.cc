#include "fathom/kernels/gemm/mxfp8_gemm/mxfp8_gemm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/cpu/products/product_operands_test.h"
#include "fathom/kernels/gemm/quantised_calls_test.h"
#include "fathom/kernels/moe/mxfp8_group_gemm/mxfp8_group_gemm.h"

namespace fathom {
namespace {

/// Codes and scales [n, k], row-major or in tiles.
struct Mxfp8Matrix {
  int64_t n, k;
  std::vector<uint8_t> codes, scales, tiles;

  Mxfp8Matrix(int64_t rows, int64_t cols, uint8_t code, uint8_t scale)
      : n(rows),
        k(cols),
        codes(static_cast<size_t>(n * k), code),
        scales(static_cast<size_t>(scale_count_for(Format::kMxfp8, n, k)), scale) {}

  QuantView view(WeightLayout layout) {
    QuantView w;
    w.layout = layout;
    if (layout == WeightLayout::kRowMajor) {
      w.values = make_view(codes.data(), {n, k}, Format::kMxfp8);
      w.scales = make_view(scales.data(), {n, ceil_div(k, kMxfp8Block)}, Format::kUe8m0);
      return w;
    }
    const int64_t groups = ceil_div(n, kTileRows);
    tiles.resize(static_cast<size_t>(groups * rows16_group_bytes(Format::kMxfp8, k)));
    pack_rows16({Format::kMxfp8, n, k, codes.data(), scales.data()},
                {Format::kMxfp8, n, k, tiles.data()}, 0, groups);
    w.values = make_view(tiles.data(), {n, k}, Format::kMxfp8);
    return w;
  }
};

Mxfp8Gemm::Args args_of(std::vector<Bf16>& x, const QuantView& w, std::vector<float>& y) {
  const int64_t t = static_cast<int64_t>(x.size()) / w.cols();
  return {.x = make_view(x.data(), {t, w.cols()}, Format::kBf16),
          .w = w,
          .y = make_view(y.data(), {t, w.rows()}, Format::kF32)};
}

constexpr WeightLayout kLayouts[] = {WeightLayout::kRows16, WeightLayout::kRowMajor};

/// One product a row, so nothing is rounded: code * 2^e, up to the ends of the range of bf16.
TEST(Mxfp8Gemm, EveryCodeTimesItsScaleIsExact) {
  const int64_t n = 256, k = 32;
  for (int byte : {10, 11, 60, 127, 200, 246}) {
    Mxfp8Matrix m(n, k, 0, static_cast<uint8_t>(byte));
    for (int64_t row = 0; row < n; ++row)
      m.codes[static_cast<size_t>(row * k + row % k)] = static_cast<uint8_t>(row);
    std::vector<Bf16> x(static_cast<size_t>(k), bf16_from_float(1.0f));
    for (WeightLayout layout : kLayouts) {
      std::vector<float> y(static_cast<size_t>(n));
      const auto args = args_of(x, m.view(layout), y);
      for (std::string_view variant : variants_for<Mxfp8Gemm>(args)) {
        ASSERT_TRUE(Caller(variant).run<Mxfp8Gemm>(args).ok());
        for (int64_t row = 0; row < n; ++row) {
          const float expected = std::ldexp(to_float(E4m3{static_cast<uint8_t>(row)}), byte - 127);
          const float found = y[static_cast<size_t>(row)];
          ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
              << variant << " code " << row << " scale 2^" << byte - 127 << ": " << found;
        }
      }
    }
  }
}

/// A block of zeros may have any scale.
TEST(Mxfp8Gemm, ZerosStayZeroAtTheEndsOfTheScales) {
  for (const uint8_t byte : {uint8_t{0}, uint8_t{254}}) {
    Mxfp8Matrix m(20, 40, 0x80, byte);
    std::vector<Bf16> x(static_cast<size_t>(3 * 40), bf16_from_float(2.5f));
    std::vector<float> y(static_cast<size_t>(3 * 20), kNan);
    for (WeightLayout layout : kLayouts) {
      const auto args = args_of(x, m.view(layout), y);
      for (std::string_view variant : variants_for<Mxfp8Gemm>(args)) {
        ASSERT_TRUE(Caller(variant).run<Mxfp8Gemm>(args).ok());
        for (float value : y)
          ASSERT_EQ(value, 0.0f) << variant;
      }
    }
  }
}

TEST(Mxfp8Gemm, NanReachesItsOwnRowAndColumn) {
  const int64_t t = 5, n = 20, k = 130;
  Mxfp8Matrix m(n, k, 0x38, 125);
  m.codes[7 * k + 3] = 0x7F;
  m.codes[9 * k + 129] = 0xFF;
  std::vector<Bf16> x = random_x(t, k, 91);
  x[3 * k + 64] = bf16_from_float(kNan);
  std::vector<float> y(static_cast<size_t>(t * n));
  for (WeightLayout layout : kLayouts) {
    const auto args = args_of(x, m.view(layout), y);
    for (std::string_view variant : variants_for<Mxfp8Gemm>(args)) {
      ASSERT_TRUE(Caller(variant).run<Mxfp8Gemm>(args).ok());
      for (int64_t i = 0; i < t * n; ++i) {
        ASSERT_EQ(std::isnan(y[static_cast<size_t>(i)]), i / n == 3 || i % n == 7 || i % n == 9)
            << variant << " at " << i;
      }
    }
  }
}

TEST(Mxfp8Gemm, RowsOfExpertsHaveItsBits) {
  const int64_t experts = 3, n = 32, k = 96, rows = 12;
  Stored stack({.num_experts = experts, .rows = n, .cols = k, .format = Format::kMxfp8}, 92);
  std::vector<Bf16> x = random_x(rows, k, 93);
  std::vector<int32_t> offsets = {1, 8, 8, 11};
  std::vector<float> y(static_cast<size_t>(rows * n), -1.0f);
  const Mxfp8GroupGemm::Args grouped{
      .x = make_view(x.data(), {rows, k}, Format::kBf16),
      .w = stack.view(),
      .offsets = make_view(offsets.data(), {experts + 1}, Format::kI32),
      .y = make_view(y.data(), {rows, n}, Format::kF32)};
  for (std::string_view variant : variants_for<Mxfp8GroupGemm>(grouped)) {
    ASSERT_TRUE(Caller(variant).run<Mxfp8GroupGemm>(grouped).ok());
    for (int64_t e : {0, 2}) {
      const int64_t first = offsets[static_cast<size_t>(e)];
      const int64_t count = offsets[static_cast<size_t>(e + 1)] - first;
      QuantView one = stack.view();
      one.values =
          make_view(stack.values.data() + e * static_cast<int64_t>(stack.values.size()) / experts,
                    {n, k}, Format::kMxfp8);
      std::vector<float> alone(static_cast<size_t>(count * n));
      const Mxfp8Gemm::Args args{.x = make_view(x.data() + first * k, {count, k}, Format::kBf16),
                                 .w = one,
                                 .y = make_view(alone.data(), {count, n}, Format::kF32)};
      ASSERT_TRUE(Caller(variant).run<Mxfp8Gemm>(args).ok());
      EXPECT_TRUE(same_bits(
          alone, std::vector<float>(y.begin() + first * n, y.begin() + (first + count) * n)))
          << variant << " expert " << e;
    }
    EXPECT_EQ(y[0], -1.0f);
    EXPECT_EQ(y.back(), -1.0f);
  }
}

TEST(Mxfp8Gemm, ErrorsNameTheScales) {
  Mxfp8Matrix m(16, 64, 0x38, 127);
  std::vector<Bf16> x(64);
  std::vector<float> y(16);
  Mxfp8Gemm::Args args = args_of(x, m.view(WeightLayout::kRowMajor), y);
  args.w.scales = make_view(m.scales.data(), {16, 1}, Format::kUe8m0);
  EXPECT_NE(Caller().run<Mxfp8Gemm>(args).message().find("expected 32 packed values of ue8m0"),
            std::string::npos);
  args.w.scales = {};
  EXPECT_NE(Caller().run<Mxfp8Gemm>(args).message().find("w has no scales"), std::string::npos);
}

}  // namespace
}  // namespace fathom
