#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_fp8_gemm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/layout/tile_layout.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr int64_t kT = 2, kN = 3, kK = 256;

/// Weights of zero, scales of one; tests put one weight where they want it.
struct Call {
  TestTensor x{{kT, kK}, Format::kE4m3, 0.0f}, x_scales{{kT, kK / 128}, Format::kF32, 1.0f};
  std::vector<uint8_t> codes = std::vector<uint8_t>(kN * kK / 2, 0);
  TestTensor scales{{kN, kK / 16}, Format::kE4m3, 1.0f}, global{{1}, Format::kF32, 1.0f};
  TestTensor y{{kT, kN}, Format::kF32, NAN};

  void put(int64_t n, int64_t k, E2m1 code, E4m3 scale) {
    uint8_t& byte = codes[static_cast<size_t>((n * kK + k) / 2)];
    byte = k % 2 == 0 ? pack_e2m1(code, E2m1{0}) : pack_e2m1(E2m1{0}, code);
    scales.set(n * (kK / 16) + k / 16, to_float(scale));
  }

  Nvfp4Fp8Gemm::Args args() {
    Nvfp4Fp8Gemm::Args a{.x = x.view(), .w = {}, .y = y.view(), .x_scales = x_scales.view()};
    a.x.format = Format::kFp8Group;
    a.w.values = make_view(codes.data(), {kN, kK}, Format::kNvfp4);
    a.w.scales = scales.view();
    a.w.global = global.view();
    return a;
  }
};

/// e4m3(value / 8), found among all codes: the nearest, and of two the one whose last bit is 0.
double nearest_e4m3(double value) {
  double best = 0;
  double distance = INFINITY;
  for (int bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7F) == 0x7F) continue;
    const double candidate = double{to_float(E4m3{static_cast<uint8_t>(bits)})};
    const double off = std::fabs(candidate - value / 8);
    if (off > distance || (off == distance && bits % 2 != 0)) continue;
    best = candidate;
    distance = off;
  }
  return best;
}

TEST(Nvfp4AsE4m3, IsTheNearestCodeOfEveryWeightAndNeverSaturates) {
  int rounded = 0;
  for (int scale = 0; scale < 0x7F; ++scale) {
    for (uint8_t code = 0; code < 16; ++code) {
      const float value = to_float(E2m1{code}) * to_float(E4m3{static_cast<uint8_t>(scale)});

      const double found = double{to_float(nvfp4_as_e4m3(value))};

      ASSERT_EQ(found, nearest_e4m3(double{value})) << "code " << int{code} << " scale " << scale;
      ASSERT_LE(std::fabs(found), 336.0);
      rounded += found * 8 != double{value} ? 1 : 0;
    }
  }
  EXPECT_GT(rounded, 200);  // otherwise there would be nothing to round
}

TEST(Nvfp4Fp8Gemm, EveryCodeAndScaleIsRoundedAndMeetsItsColumn) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4Fp8Gemm>()) {
    for (int scale : {0x00, 0x01, 0x03, 0x07, 0x08, 0x0F, 0x2D, 0x39, 0x3B, 0x77, 0x7E}) {
      for (uint8_t code = 0; code < 16; ++code) {
        for (int64_t k : {0, 1, 15, 16, 127, 128, 255}) {
          Call c;
          const E4m3 s{static_cast<uint8_t>(scale)};
          c.put(1, k, E2m1{code}, s);
          c.global.set(0, 0.25f);
          c.x.set(k, 3.0f);
          c.x.set(kK + k, -1.0f);
          c.x_scales.set(k / 128, 0.5f);
          FATHOM_EXPECT_OK(
              launch<Nvfp4Fp8Gemm>(ex.with("nvfp4_fp8_gemm", variant), "test", c.args()));

          const double w = 8 * 0.25 * nearest_e4m3(double{to_float(E2m1{code}) * to_float(s)});
          ASSERT_EQ(double{c.y[1]}, 3.0 * 0.5 * w)
              << variant << " code " << int{code} << " k " << k;
          ASSERT_EQ(double{c.y[kN + 1]}, -w) << variant;
          ASSERT_EQ(c.y[0], 0.0f) << variant;
          ASSERT_EQ(c.y[2], 0.0f) << variant;
        }
      }
    }
  }
}

TEST(Nvfp4Fp8Gemm, ScalesOfXLieInAnyStrides) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4Fp8Gemm>()) {
    Call c;
    c.put(2, 130, E2m1{2}, E4m3{0x38});  // 1
    c.x.set(130, 2.0f);
    c.x.set(kK + 130, 2.0f);
    const TestTensor columns({kK / 128, kT}, Format::kF32, {100.0f, 200.0f, 0.5f, 0.25f});
    Nvfp4Fp8Gemm::Args a = c.args();
    a.x_scales = make_view(columns.view().data, {kT, kK / 128}, Format::kF32);
    a.x_scales.strides = {1, kT};

    FATHOM_EXPECT_OK(launch<Nvfp4Fp8Gemm>(ex.with("nvfp4_fp8_gemm", variant), "test", a));

    EXPECT_EQ(c.y[2], 1.0f) << variant;
    EXPECT_EQ(c.y[kN + 2], 0.5f) << variant;
  }
}

TEST(Nvfp4Fp8Gemm, TilesHaveTheBitsOfRows) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4Fp8Gemm>()) {
    Call c;
    for (int64_t k = 0; k < kK; ++k) {
      for (int64_t t = 0; t < kT; ++t)
        c.x.set(t * kK + k, static_cast<float>((k * 7 + t) % 11) - 5.0f);
      for (int64_t n = 0; n < kN; ++n)
        c.codes[static_cast<size_t>((n * kK + k) / 2)] = static_cast<uint8_t>(k * 37 + n * 101);
    }
    for (int64_t i = 0; i < kN * kK / 16; ++i)
      c.scales.set(i, to_float(E4m3{static_cast<uint8_t>(i * 5 % 127)}));
    Nvfp4Fp8Gemm::Args a = c.args();
    FATHOM_EXPECT_OK(launch<Nvfp4Fp8Gemm>(ex.with("nvfp4_fp8_gemm", variant), "test", a));
    const std::vector<float> rows{c.y[0], c.y[1], c.y[2], c.y[3], c.y[4], c.y[5]};
    std::vector<uint8_t> tiles(static_cast<size_t>(rows16_group_bytes(Format::kNvfp4, kK)));
    float global = 1.0f;
    pack_rows16(
        {.format = Format::kNvfp4,
         .n = kN,
         .k = kK,
         .values = c.codes.data(),
         .scales = c.scales.view().data},
        {.format = Format::kNvfp4, .n = kN, .k = kK, .tiles = tiles.data(), .global = &global}, 0,
        1);
    a.w.layout = WeightLayout::kRows16;
    a.w.values.data = tiles.data();
    a.w.scales = {};

    FATHOM_EXPECT_OK(launch<Nvfp4Fp8Gemm>(ex.with("nvfp4_fp8_gemm", variant), "test", a));

    for (int64_t i = 0; i < kT * kN; ++i) {
      EXPECT_EQ(c.y[i], rows[static_cast<size_t>(i)]) << variant << " at " << i;
      EXPECT_NE(c.y[i], 0.0f) << variant << " at " << i;
    }
  }
}

TEST(Nvfp4Fp8Gemm, NanInARowOfXStaysThere) {
  TestExec ex;
  for (const std::string& variant : variants_of<Nvfp4Fp8Gemm>()) {
    for (bool in_scales : {false, true}) {
      Call c;
      if (in_scales) c.x_scales.set(1, NAN);
      if (!in_scales) c.x.set(200, NAN);
      FATHOM_EXPECT_OK(launch<Nvfp4Fp8Gemm>(ex.with("nvfp4_fp8_gemm", variant), "test", c.args()));

      for (int64_t i = 0; i < kT * kN; ++i)
        EXPECT_EQ(std::isnan(c.y[i]), i < kN) << variant << " at " << i;
    }
  }
}

TEST(Nvfp4Fp8Gemm, ErrorsNameWhatIsMissing) {
  TestExec ex;
  Call c;
  const auto message = [&](const Nvfp4Fp8Gemm::Args& a) {
    return launch<Nvfp4Fp8Gemm>(*ex, "test", a).message();
  };
  Nvfp4Fp8Gemm::Args a = c.args();
  a.x_scales = {};
  EXPECT_NE(message(a).find("expected [2, 2] f32, one for 128 columns"), std::string::npos);
  a = c.args();
  a.w.global = {};
  EXPECT_NE(message(a).find("w has no global"), std::string::npos);
  a = c.args();
  a.x.dims[1] = a.w.values.dims[1] = 192;
  EXPECT_NE(message(a).find("K%128==0"), std::string::npos) << message(a);
}

}  // namespace
}  // namespace fathom
