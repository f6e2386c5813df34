#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr int64_t kN = 32, kK = 128, kBlocks = kK / 16;

/// Two experts in the reference's layout, five rows of packed codes.
struct Call {
  std::vector<uint8_t> x = std::vector<uint8_t>(5 * kK / 2),
                       w = std::vector<uint8_t>(2 * kN * kK / 2);
  std::vector<E4m3> x_linear = std::vector<E4m3>(5 * kBlocks),
                    w_linear = std::vector<E4m3>(2 * kN * kBlocks);
  std::vector<uint8_t> x_swizzled, w_swizzled;
  TestTensor offsets{{3}, Format::kI32, std::vector<float>{0, 2, 5}};
  TestTensor scale_offsets{{3}, Format::kI32, std::vector<float>{0, 128, 256}};
  TestTensor alphas{{2}, Format::kF32, std::vector<float>{0.5f, -2.0f}};
  TestTensor y{{5, kN}, Format::kF32, NAN};

  Call() {
    Rng rng(23, 1);
    for (std::vector<uint8_t>* bytes : {&x, &w}) {
      for (uint8_t& b : *bytes)
        b = static_cast<uint8_t>(rng.next_below(256));
    }
    for (std::vector<E4m3>* scales : {&x_linear, &w_linear}) {
      for (E4m3& s : *scales)
        s = e4m3_from_float(0.5f + rng.next_uniform());
    }
    swizzle();
  }

  /// Padding of both is NaN.
  void swizzle() {
    const auto tiles = static_cast<size_t>(swizzled_128x4_bytes(128, kBlocks));
    x_swizzled.assign(2 * tiles, 0x7F);
    w_swizzled.assign(2 * tiles, 0x7F);
    const auto put = [](std::vector<uint8_t>& to, int64_t at, E4m3 s) {
      to[static_cast<size_t>(at)] = s.bits;
    };
    for (int64_t r = 0; r < 5; ++r) {
      const int64_t row = r < 2 ? r : 128 + r - 2;
      for (int64_t b = 0; b < kBlocks; ++b)
        put(x_swizzled, swizzled_128x4_offset(row, b, kBlocks),
            x_linear[static_cast<size_t>(r * kBlocks + b)]);
    }
    for (int64_t n = 0; n < 2 * kN; ++n) {
      for (int64_t b = 0; b < kBlocks; ++b)
        put(w_swizzled,
            n / kN * static_cast<int64_t>(tiles) + swizzled_128x4_offset(n % kN, b, kBlocks),
            w_linear[static_cast<size_t>(n * kBlocks + b)]);
    }
  }

  Nvfp4GroupGemm::Args args() {
    Nvfp4GroupGemm::Args a{.x = make_view(x.data(), {5, kK}, Format::kNvfp4),
                           .w = {},
                           .offsets = offsets.view(),
                           .y = y.view(),
                           .x_scales = make_view(x_swizzled.data(), {256, kBlocks}, Format::kE4m3),
                           .scale_offsets = scale_offsets.view(),
                           .alphas = alphas.view(),
                           .x_scale_layout = BlockScaleLayout::kSwizzled128x4,
                           .w_scale_layout = BlockScaleLayout::kSwizzled128x4};
    a.w.values = make_view(w.data(), {2, kN, kK}, Format::kNvfp4);
    a.w.scales = make_view(w_swizzled.data(), {2, 128, kBlocks}, Format::kE4m3);
    return a;
  }

  Nvfp4GroupGemm::Args linear_args() {
    Nvfp4GroupGemm::Args a = args();
    a.x_scale_layout = a.w_scale_layout = BlockScaleLayout::kLinear;
    a.x_scales = make_view(x_linear.data(), {5, kBlocks}, Format::kE4m3);
    a.w.scales = make_view(w_linear.data(), {2, kN, kBlocks}, Format::kE4m3);
    a.scale_offsets = {};
    return a;
  }
};

TEST(Nvfp4GroupGemm, SwizzledAndLinearScalesGiveTheSameBits) {
  TestExec ex;
  for (const char* variant : {"portable", "avx512_row_major_quantised_x"}) {
    Call swizzled, linear;
    Exec& pinned = ex.with("nvfp4_group_gemm", variant);
    if (!why_not<Nvfp4GroupGemm>(pinned, "test", swizzled.args()).empty()) continue;
    FATHOM_EXPECT_OK(launch<Nvfp4GroupGemm>(pinned, "test", swizzled.args()));
    FATHOM_EXPECT_OK(launch<Nvfp4GroupGemm>(pinned, "test", linear.linear_args()));

    EXPECT_EQ(swizzled.y.bytes(), linear.y.bytes()) << variant;
    for (int64_t i = 0; i < swizzled.y.size(); ++i)
      ASSERT_TRUE(std::isfinite(swizzled.y[i])) << variant << ", element " << i;
  }
}

TEST(Nvfp4GroupGemm, AlphaIsAFactorOfItsExpertAlone) {
  TestExec ex;
  Call with, without;
  FATHOM_EXPECT_OK(launch<Nvfp4GroupGemm>(*ex, "test", with.args()));
  without.alphas.set(0, 1);
  without.alphas.set(1, 1);
  FATHOM_EXPECT_OK(launch<Nvfp4GroupGemm>(*ex, "test", without.args()));

  for (int64_t i = 0; i < with.y.size(); ++i)
    EXPECT_EQ(with.y[i], without.y[i] * (i / kN < 2 ? 0.5f : -2.0f)) << "element " << i;
}

TEST(Nvfp4GroupGemm, NanScaleOfARowStaysInThatRow) {
  TestExec ex;
  for (const char* variant : {"portable", "avx512_row_major_quantised_x"}) {
    Call c;
    c.x_linear[static_cast<size_t>(3 * kBlocks + 2)] = E4m3{0x7F};
    c.swizzle();
    Exec& pinned = ex.with("nvfp4_group_gemm", variant);
    if (!why_not<Nvfp4GroupGemm>(pinned, "test", c.args()).empty()) continue;
    FATHOM_EXPECT_OK(launch<Nvfp4GroupGemm>(pinned, "test", c.args()));

    for (int64_t i = 0; i < c.y.size(); ++i)
      ASSERT_EQ(std::isnan(c.y[i]), i / kN == 3) << variant << ", element " << i;
  }
}

TEST(Nvfp4GroupGemm, RefusesScalesThatDoNotFit) {
  TestExec ex;
  Call c;
  Nvfp4GroupGemm::Args a = c.args();
  const auto error = [&] { return launch<Nvfp4GroupGemm>(*ex, "test", a).message(); };
  const auto has = [&](std::string_view text) { return error().find(text) != std::string::npos; };

  EXPECT_EQ(error(), "");
  a.alphas = {};
  EXPECT_TRUE(has("w has no global")) << error();
  a = c.args();
  a.scale_offsets = {};
  EXPECT_TRUE(has("expected 2 i32, one an expert")) << error();
  a = c.args();
  c.scale_offsets.set(1, 64);
  EXPECT_TRUE(has("scale_offsets[1] is 64 for 3 rows, expected a multiple of 128")) << error();
  c.scale_offsets.set(1, 256);
  EXPECT_TRUE(has("scale_offsets[1] is 256")) << error();
  c.scale_offsets.set(1, 128);
  a.x_scales = make_view(c.x_swizzled.data(), {256, kBlocks - 1}, Format::kE4m3);
  EXPECT_TRUE(has("with 8 columns, swizzled 128x4")) << error();
  a = c.args();
  const TestTensor x({5, kK}, Format::kBf16);
  a.x = x.view();
  EXPECT_TRUE(has("takes neither x_scales nor alphas")) << error();
}

TEST(Nvfp4GroupGemm, AGateIsForHalfTheColumnsInBf16) {
  TestExec ex;
  Call c;
  const TestTensor x({5, kK}, Format::kBf16), halves({5, kN / 2}, Format::kBf16);
  const TestTensor global({2}, Format::kF32);
  Nvfp4GroupGemm::Args a{.x = x.view(),
                         .w = c.linear_args().w,
                         .offsets = c.offsets.view(),
                         .y = halves.view(),
                         .gate = {.on = true, .limit = 10}};
  a.w.global = global.view();
  const auto has = [&](std::string_view text) {
    return launch<Nvfp4GroupGemm>(*ex, "test", a).message().find(text) != std::string::npos;
  };

  FATHOM_EXPECT_OK(launch<Nvfp4GroupGemm>(*ex, "test", a));
  a.gate.limit = -1;
  EXPECT_TRUE(has("gate.limit is -1 of a product with a gate"));
  a.gate = {.on = false, .limit = 10};
  EXPECT_TRUE(has("gate.limit is 10 of a product without a gate"));
  a.gate = {};
  EXPECT_TRUE(has("expected 32 columns"));
  a.gate.on = true;
  a.y = c.y.view();
  EXPECT_TRUE(has("expected bf16 and half as many columns as w has rows, 32"));
  a = c.linear_args();
  a.gate.on = true;
  a.y = halves.view();
  EXPECT_TRUE(has("x is nvfp4, whose products have no gate"));
}

}  // namespace
}  // namespace fathom
