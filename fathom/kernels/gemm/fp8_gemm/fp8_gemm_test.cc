#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cpu/products/product_operands_test.h"
#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"
#include "fathom/kernels/gemm/quantised_calls_test.h"

namespace fathom {
namespace {

TEST(RowMajorWeights, HaveTheBitsOfTiles) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512";
  for (int64_t t : {1, 5, 70}) {
    const std::vector<Bf16> x = random_x(t, 388, 51);
    const View xv = make_view(const_cast<Bf16*>(x.data()), {t, 388}, Format::kBf16);
    std::vector<float> tiled(static_cast<size_t>(t * 85)), plain(tiled.size());
    const View tiled_y = make_view(tiled.data(), {t, 85}, Format::kF32);
    const View plain_y = make_view(plain.data(), {t, 85}, Format::kF32);
    CaseWeightSpec spec{.rows = 85, .cols = 388};
    for (Format format : {Format::kBf16, Format::kFp8Block}) {
      spec.format = format;
      spec.layout = WeightLayout::kRows16;
      Stored tiles(spec, 52);
      spec.layout = WeightLayout::kRowMajor;
      Stored rows(spec, 52);
      Caller tile_caller("avx512");
      Caller row_caller("avx512_row_major");
      if (format == Format::kBf16) {
        ASSERT_TRUE(tile_caller.run<Bf16Gemm>({xv, tiles.view(), tiled_y}).ok());
        ASSERT_TRUE(row_caller.run<Bf16Gemm>({xv, rows.view(), plain_y}).ok());
      } else {
        ASSERT_TRUE(tile_caller.run<Fp8BlockGemm>({.x = xv, .w = tiles.view(), .y = tiled_y}).ok());
        ASSERT_TRUE(row_caller.run<Fp8BlockGemm>({.x = xv, .w = rows.view(), .y = plain_y}).ok());
      }
      EXPECT_TRUE(same_bits(tiled, plain)) << format_name(format) << " t " << t;
    }
  }
}

/// E4M3 activations with scales in the three layouts of the reference.
TEST(Fp8BlockGemm, LayoutsOfScalesAndWeightsGiveTheSameBits) {
  const int64_t t = 6, n = 150, k = 300, blocks = 3;
  std::vector<uint8_t> x = random_e4m3(static_cast<size_t>(t * k), 61);
  std::vector<float> by_row(static_cast<size_t>(t * blocks));
  for (size_t i = 0; i < by_row.size(); ++i)
    by_row[i] = 0.01f * static_cast<float>(i + 1);
  std::vector<float> by_column(static_cast<size_t>(blocks * t)), aligned(8 * blocks, kNan);
  scales_to_column_major(by_row.data(), t, blocks, t, by_column.data());
  scales_to_column_major(by_row.data(), t, blocks, 8, aligned.data());
  const auto strided = [&](std::vector<float>& scales, int64_t row, int64_t block) {
    View v = make_view(scales.data(), {t, blocks}, Format::kF32);
    v.strides = {row, block};
    return v;
  };
  const View layouts[] = {strided(by_row, blocks, 1), strided(by_column, 1, t),
                          strided(aligned, 1, tma_aligned_stride(t))};
  ASSERT_EQ(tma_aligned_stride(t), 8);
  CaseWeightSpec spec{.rows = n, .cols = k, .format = Format::kFp8Block};
  Stored tiles(spec, 62);
  spec.layout = WeightLayout::kRowMajor;
  Stored rows(spec, 62);
  std::vector<float> y(static_cast<size_t>(t * n));
  std::vector<float> fastest;  // of the AVX-512 variants, which share their sums
  for (Stored* w : {&tiles, &rows}) {
    for (const View& scales : layouts) {
      const Fp8BlockGemm::Args args{.x = make_view(x.data(), {t, k}, Format::kFp8Group),
                                    .w = w->view(),
                                    .y = make_view(y.data(), {t, n}, Format::kF32),
                                    .x_scales = scales};
      ASSERT_TRUE(Caller().run<Fp8BlockGemm>(args).ok());
      if (fastest.empty()) fastest = y;
      EXPECT_TRUE(best_isa() < Isa::kAvx512 || same_bits(y, fastest));
      ASSERT_TRUE(Caller("portable").run<Fp8BlockGemm>(args).ok());
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(y[i], fastest[i], 1e-4f * (1.0f + std::fabs(fastest[i])));
    }
  }
}

TEST(Fp8BlockGemm, ErrorsNameTheScalesOfX) {
  std::vector<uint8_t> x(2 * 256);
  std::vector<float> scales(8), y(2 * 16);
  Stored w({.rows = 16, .cols = 256, .format = Format::kFp8Block}, 63);
  Fp8BlockGemm::Args args{.x = make_view(x.data(), {2, 256}, Format::kFp8Group),
                          .w = w.view(),
                          .y = make_view(y.data(), {2, 16}, Format::kF32)};
  const auto message = [&] { return Caller().run<Fp8BlockGemm>(args).message(); };
  EXPECT_NE(message().find("x_scales is"), std::string::npos);
  args.x_scales = make_view(scales.data(), {2, 3}, Format::kF32);
  EXPECT_NE(message().find("expected [2, 2] f32"), std::string::npos);
  args.x_scales = make_view(scales.data(), {2, 2}, Format::kF32);
  EXPECT_EQ(message(), "");
  std::vector<Bf16> plain(2 * 256);
  args.x = make_view(plain.data(), {2, 256}, Format::kBf16);
  EXPECT_NE(message().find("which has none"), std::string::npos);
}

TEST(Fp8BlockGemm, NanInXReachesItsOwnRow) {
  const int64_t t = 4, n = 20, k = 256;
  std::vector<uint8_t> x = random_e4m3(static_cast<size_t>(t * k), 64);
  x[2 * k + 200] = 0x7F;
  std::vector<float> scales(static_cast<size_t>(t * 2), 0.5f), y(static_cast<size_t>(t * n));
  scales[1] = kInfinity;
  for (WeightLayout layout : {WeightLayout::kRows16, WeightLayout::kRowMajor}) {
    Stored w({.rows = n, .cols = k, .format = Format::kFp8Block, .layout = layout}, 65);
    const Fp8BlockGemm::Args args{.x = make_view(x.data(), {t, k}, Format::kFp8Group),
                                  .w = w.view(),
                                  .y = make_view(y.data(), {t, n}, Format::kF32),
                                  .x_scales = make_view(scales.data(), {t, 2}, Format::kF32)};
    for (std::string_view variant : variants_for<Fp8BlockGemm>(args)) {
      ASSERT_TRUE(Caller(variant).run<Fp8BlockGemm>(args).ok());
      for (int64_t i = 0; i < t * n; ++i) {
        const float value = y[static_cast<size_t>(i)];
        if (i / n == 2) {
          ASSERT_TRUE(std::isnan(value)) << variant;
        } else if (i / n == 0) {
          ASSERT_FALSE(std::isfinite(value)) << variant;
        } else {
          ASSERT_TRUE(std::isfinite(value)) << variant;
        }
      }
    }
  }
}

TEST(Fp8Gemm, NanCodesReachTheirOwnRowAndColumn) {
  const int64_t t = 5, n = 20, k = 130;
  std::vector<uint8_t> x = random_e4m3(static_cast<size_t>(t * k), 81);
  std::vector<uint8_t> w = random_e4m3(static_cast<size_t>(n * k), 82);
  x[3 * k + 129] = 0xFF;
  w[7 * k] = 0x7F;
  std::vector<float> x_scales(static_cast<size_t>(t), 0.5f), w_scales(static_cast<size_t>(n), 2.0f);
  std::vector<float> y(static_cast<size_t>(t * n));
  QuantView weight;
  weight.values = make_view(w.data(), {n, k}, Format::kFp8Channel);
  weight.scales = make_view(w_scales.data(), {n}, Format::kF32);
  const Fp8Gemm::Args args{.x = make_view(x.data(), {t, k}, Format::kE4m3),
                           .x_scales = make_view(x_scales.data(), {t}, Format::kF32),
                           .w = weight,
                           .y = make_view(y.data(), {t, n}, Format::kF32)};
  for (std::string_view variant : variants_for<Fp8Gemm>(args)) {
    ASSERT_TRUE(Caller(variant).run<Fp8Gemm>(args).ok());
    for (int64_t i = 0; i < t * n; ++i) {
      ASSERT_EQ(std::isnan(y[static_cast<size_t>(i)]), i / n == 3 || i % n == 7)
          << variant << " at " << i;
    }
  }
}

TEST(Fp8Gemm, ErrorsNameTheScalesOfTheWeight) {
  std::vector<uint8_t> x(64), w(16 * 64);
  std::vector<float> scales(16), y(16);
  QuantView weight;
  weight.values = make_view(w.data(), {16, 64}, Format::kFp8Channel);
  Fp8Gemm::Args args{.x = make_view(x.data(), {1, 64}, Format::kE4m3),
                     .x_scales = make_view(scales.data(), {1}, Format::kF32),
                     .w = weight,
                     .y = make_view(y.data(), {1, 16}, Format::kF32)};
  EXPECT_NE(Caller().run<Fp8Gemm>(args).message().find("w has no scales"), std::string::npos);
  args.w.scales = make_view(scales.data(), {15}, Format::kF32);
  EXPECT_NE(Caller().run<Fp8Gemm>(args).message().find("expected 16"), std::string::npos);
}

}  // namespace
}  // namespace fathom
