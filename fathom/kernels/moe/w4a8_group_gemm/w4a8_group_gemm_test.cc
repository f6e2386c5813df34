#include "fathom/kernels/moe/w4a8_group_gemm/w4a8_group_gemm.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/formats/integer/group_int.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr int64_t kN = 3, kK = 256;

/// One expert of three rows whose codes are all different powers, two rows of x.
struct Call {
  TestTensor x{{2, kK}, Format::kE4m3, 0.0f}, x_scale{{1}, Format::kF32, 0.5f};
  std::vector<uint8_t> codes = std::vector<uint8_t>(kN * kK / 2, 0);
  TestTensor scales{{1, kK / 128, kN}, Format::kBf16, 1.0f};
  TestTensor offsets{{2}, Format::kI32, std::vector<float>{0, 2}}, y{{2, kN}, Format::kF32, NAN};

  W4a8GroupGemm::Args args() {
    W4a8GroupGemm::Args a{.x = x.view(),
                          .x_scale = x_scale.view(),
                          .w = {},
                          .offsets = offsets.view(),
                          .y = y.view()};
    a.w.values = make_view(codes.data(), {1, kN, kK}, Format::kW4Fp8);
    a.w.scales = scales.view();
    return a;
  }
};

TEST(W4a8GroupGemm, EveryCodeMeetsItsColumnAndItsScale) {
  TestExec ex;
  for (const std::string& variant : variants_of<W4a8GroupGemm>()) {
    for (int code = -8; code < 8; ++code) {
      for (int64_t k : {0, 1, 127, 128, 255}) {
        Call c;
        uint8_t& byte = c.codes[static_cast<size_t>(1 * kK / 2 + k / 2)];
        byte = k % 2 == 0 ? pack_int4(static_cast<int8_t>(code), 0)
                          : pack_int4(0, static_cast<int8_t>(code));
        c.x.set(k, 3.0f);
        c.x.set(kK + k, -1.0f);
        c.scales.set(k / 128 * kN + 1, 0.25f);  // [groups, n]
        FATHOM_EXPECT_OK(
            launch<W4a8GroupGemm>(ex.with("w4a8_group_gemm", variant), "test", c.args()));

        const auto value = static_cast<float>(code);
        EXPECT_EQ(c.y[1], 0.5f * 3.0f * 0.25f * value) << variant << " k " << k;
        EXPECT_EQ(c.y[kN + 1], 0.5f * -0.25f * value) << variant << " k " << k;
        EXPECT_EQ(c.y[0], 0.0f) << variant;
        EXPECT_EQ(c.y[2], 0.0f) << variant;
      }
    }
  }
}

TEST(W4a8GroupGemm, NanInARowStaysThereAndF16OverflowsToInfinity) {
  TestExec ex;
  for (const std::string& variant : variants_of<W4a8GroupGemm>()) {
    Call c;
    c.codes.assign(c.codes.size(), 0x77);
    c.x.set(5, NAN);
    for (int64_t k = 0; k < kK; ++k)
      c.x.set(kK + k, 448.0f);
    const TestTensor y({2, kN}, Format::kF16, 0.0f);
    W4a8GroupGemm::Args a = c.args();
    a.y = y.view();
    FATHOM_EXPECT_OK(launch<W4a8GroupGemm>(ex.with("w4a8_group_gemm", variant), "test", a));

    for (int64_t n = 0; n < kN; ++n) {
      EXPECT_TRUE(std::isnan(y[n])) << variant;
      EXPECT_TRUE(std::isinf(y[kN + n]) && y[kN + n] > 0) << variant;
    }
  }
}

TEST(W4a8GroupGemm, RefusesScalesThatDoNotFit) {
  TestExec ex;
  Call c;
  W4a8GroupGemm::Args a = c.args();
  const TestTensor few({1, 1, kN}, Format::kBf16);
  a.w.scales = few.view();

  EXPECT_NE(launch<W4a8GroupGemm>(*ex, "test", a)
                .message()
                .find("expected 6 packed values of bf16 or f32"),
            std::string::npos);
}

}  // namespace
}  // namespace fathom
