#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cpu/products/product_operands_test.h"
#include "fathom/kernels/gemm/quantised_calls_test.h"

namespace fathom {
namespace {

/// NVFP4 on both sides, in every form the weight may have.
struct Nvfp4Operands {
  int64_t t = 7, n = 150, k = 208;
  int64_t blocks = k / 16;
  std::vector<uint8_t> x = random_bytes(static_cast<size_t>(t * k / 2), 71);
  std::vector<uint8_t> x_scales = scales(t);
  std::vector<uint8_t> w = random_bytes(static_cast<size_t>(n * k / 2), 72);
  std::vector<uint8_t> w_scales = scales(n);
  std::vector<uint8_t> x_swizzled, w_swizzled;
  float alpha = 0.125f;
  std::vector<float> y = std::vector<float>(static_cast<size_t>(t * n));

  Nvfp4Operands()
      : x_swizzled(static_cast<size_t>(swizzled_128x4_bytes(t, blocks)), 0x7F),
        w_swizzled(static_cast<size_t>(swizzled_128x4_bytes(n, blocks)), 0x7F) {
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t r = 0; r < n; ++r) {
        w_swizzled[static_cast<size_t>(swizzled_128x4_offset(r, b, blocks))] =
            w_scales[static_cast<size_t>(r * blocks + b)];
      }
      for (int64_t r = 0; r < t; ++r) {
        x_swizzled[static_cast<size_t>(swizzled_128x4_offset(r, b, blocks))] =
            x_scales[static_cast<size_t>(r * blocks + b)];
      }
    }
  }

  std::vector<uint8_t> scales(int64_t rows) const {
    std::vector<uint8_t> out = random_bytes(static_cast<size_t>(rows * blocks), 73);
    for (uint8_t& byte : out)
      byte = static_cast<uint8_t>(byte % 0x7F);  // subnormals, never NaN
    return out;
  }

  static View bytes(std::vector<uint8_t>& v, int64_t rows, int64_t cols, Format format) {
    View view = make_view(nullptr, {rows, cols}, format);
    view.data = v.data();
    return view;
  }

  Nvfp4Gemm::Args args() {
    QuantView weight;
    weight.values = bytes(w, n, k, Format::kNvfp4);
    weight.scales = bytes(w_scales, n, blocks, Format::kE4m3);
    return {.x = bytes(x, t, k, Format::kNvfp4),
            .w = weight,
            .y = make_view(y.data(), {t, n}, Format::kF32),
            .x_scales = bytes(x_scales, t, blocks, Format::kE4m3),
            .alpha = make_view(&alpha, {1}, Format::kF32)};
  }

  Nvfp4Gemm::Args swizzled_args() {
    Nvfp4Gemm::Args a = args();
    a.x_scales = bytes(x_swizzled, 128, align_up<int64_t>(blocks, 4), Format::kE4m3);
    a.w.scales = bytes(w_swizzled, 256, align_up<int64_t>(blocks, 4), Format::kE4m3);
    a.x_scale_layout = a.w_scale_layout = BlockScaleLayout::kSwizzled128x4;
    return a;
  }
};

TEST(Nvfp4Gemm, LinearAndSwizzledScalesGiveTheSameBits) {
  Nvfp4Operands o;
  for (std::string_view variant : variants_for<Nvfp4Gemm>(o.args())) {
    ASSERT_TRUE(Caller(variant).run<Nvfp4Gemm>(o.args()).ok());
    const std::vector<float> linear = o.y;
    ASSERT_TRUE(Caller(variant).run<Nvfp4Gemm>(o.swizzled_args()).ok());
    EXPECT_TRUE(same_bits(o.y, linear)) << variant;
  }
}

TEST(Nvfp4Gemm, QuantisedXHasTheBitsOfTheSameXInBf16) {
  // Codes times scales are exact in bf16, so W4A4 is W4A16 on them.
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512";
  Nvfp4Operands o;
  o.alpha = 1.0f;
  std::vector<float> values(static_cast<size_t>(o.t * o.k));
  nvfp4_dequantize(o.x.data(), reinterpret_cast<const E4m3*>(o.x_scales.data()), 1.0f, o.t, o.k,
                   values.data());
  std::vector<Bf16> x;
  for (float v : values) {
    x.push_back(bf16_from_float(v));
    ASSERT_EQ(to_float(x.back()), v);
  }
  Stored w({.rows = o.n, .cols = o.k, .format = Format::kNvfp4}, 74);
  Nvfp4Gemm::Args quantised = o.args();
  quantised.w = w.view();
  ASSERT_TRUE(Caller("avx512_quantised_x").run<Nvfp4Gemm>(quantised).ok());
  const std::vector<float> expected = o.y;
  ASSERT_TRUE(Caller("avx512")
                  .run<Nvfp4Gemm>({.x = make_view(x.data(), {o.t, o.k}, Format::kBf16),
                                   .w = w.view(),
                                   .y = quantised.y})
                  .ok());
  EXPECT_TRUE(same_bits(o.y, expected));
}

TEST(Nvfp4Gemm, RowMajorWeightsHaveTheBitsOfTiles) {
  if (best_isa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512";
  Nvfp4Operands o;
  CaseWeightSpec spec{.rows = o.n, .cols = o.k, .format = Format::kNvfp4};
  Stored tiles(spec, 75);
  spec.layout = WeightLayout::kRowMajor;
  Stored rows(spec, 75);
  // A power of two, so that it does not matter when it multiplies.
  for (float& global : tiles.global)
    global = 0.25f;
  rows.global[0] = 0.25f;
  Nvfp4Gemm::Args args = o.args();
  args.w = tiles.view();
  ASSERT_TRUE(Caller("avx512_quantised_x").run<Nvfp4Gemm>(args).ok());
  const std::vector<float> expected = o.y;
  args.w = rows.view();
  ASSERT_TRUE(Caller("avx512_row_major_quantised_x").run<Nvfp4Gemm>(args).ok());
  EXPECT_TRUE(same_bits(o.y, expected));
}

TEST(Nvfp4Gemm, NanScaleOfXReachesItsOwnRow) {
  Nvfp4Operands o;
  o.x_scales[static_cast<size_t>(3 * o.blocks + 2)] = 0x7F;
  for (std::string_view variant : variants_for<Nvfp4Gemm>(o.args())) {
    ASSERT_TRUE(Caller(variant).run<Nvfp4Gemm>(o.args()).ok());
    for (int64_t i = 0; i < o.t * o.n; ++i)
      ASSERT_EQ(std::isnan(o.y[static_cast<size_t>(i)]), i / o.n == 3) << variant << " at " << i;
  }
}

TEST(Nvfp4Gemm, ErrorsNameWhatQuantisedXNeeds) {
  Nvfp4Operands o;
  const auto message = [](const Nvfp4Gemm::Args& a) {
    return Caller().run<Nvfp4Gemm>(a).message();
  };
  Nvfp4Gemm::Args args = o.args();
  args.alpha = {};
  EXPECT_NE(message(args).find("w has no global"), std::string::npos);
  args = o.args();
  args.x_scales = {};
  EXPECT_NE(message(args).find("x_scales is"), std::string::npos);
  args = o.swizzled_args();
  args.x_scales.dims[0] = 7;
  EXPECT_NE(message(args).find("swizzled 128x4"), std::string::npos);
  args = o.swizzled_args();
  args.w.layout = WeightLayout::kRows16;
  EXPECT_NE(message(args).find("row-major weights alone"), std::string::npos);
  std::vector<Bf16> x(static_cast<size_t>(o.t * o.k));
  args = o.args();
  args.x = make_view(x.data(), {o.t, o.k}, Format::kBf16);
  EXPECT_NE(message(args).find("neither x_scales nor alpha"), std::string::npos);
}

}  // namespace
}  // namespace fathom
