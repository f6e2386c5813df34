#include "fathom/kernels/moe/nvfp4_fp8_group_gemm/nvfp4_fp8_group_gemm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/gemm/nvfp4_fp8_gemm/nvfp4_fp8_gemm.h"

namespace fathom {
namespace {

constexpr int64_t kExperts = 3, kRows = 6, kN = 5, kK = 128;

/// Rows 1 to 5 in runs of 2, 0 and 2 rows; different codes, scales and global scales everywhere.
struct Call {
  TestTensor x{{kRows, kK}, Format::kE4m3}, x_scales{{kRows, 1}, Format::kF32};
  std::vector<uint8_t> codes = std::vector<uint8_t>(kExperts * kN * kK / 2);
  TestTensor scales{{kExperts, kN, kK / 16}, Format::kE4m3};
  TestTensor global{{kExperts}, Format::kF32, std::vector<float>{0.3f, NAN, 1.7f}};
  TestTensor offsets{{kExperts + 1}, Format::kI32, std::vector<float>{1, 3, 3, 5}};
  TestTensor y{{kRows, kN}, Format::kF32, NAN};

  Call() {
    for (int64_t i = 0; i < kRows * kK; ++i)
      x.set(i, static_cast<float>(i * 7 % 13) - 6.0f);
    for (int64_t r = 0; r < kRows; ++r)
      x_scales.set(r, 0.1f * static_cast<float>(r + 1));
    for (size_t i = 0; i < codes.size(); ++i)
      codes[i] = static_cast<uint8_t>(i * 37 + i / 64);
    for (int64_t i = 0; i < scales.size(); ++i)
      scales.set(i, to_float(E4m3{static_cast<uint8_t>(i * 5 % 127)}));
  }

  Nvfp4Fp8GroupGemm::Args args() {
    Nvfp4Fp8GroupGemm::Args a{.x = x.view(),
                              .w = {},
                              .offsets = offsets.view(),
                              .y = y.view(),
                              .x_scales = x_scales.view()};
    a.x.format = Format::kFp8Group;
    a.w.values = make_view(codes.data(), {kExperts, kN, kK}, Format::kNvfp4);
    a.w.scales = scales.view();
    a.w.global = global.view();
    return a;
  }
};

TEST(Nvfp4Fp8GroupGemm, RowsHaveTheBitsOfTheirExpertsOwnProduct) {
  TestExec ex;
  Call c;
  FATHOM_EXPECT_OK(
      launch<Nvfp4Fp8GroupGemm>(ex.with("nvfp4_fp8_group_gemm", "portable"), "test", c.args()));
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t e = r < 1 || r > 4 ? -1 : r < 3 ? 0 : 2;
    TestTensor alone({1, kN}, Format::kF32, NAN);
    if (e >= 0) {
      Nvfp4Fp8Gemm::Args one{.x = slice_rows(c.x.view(), r, 1),
                             .w = {},
                             .y = alone.view(),
                             .x_scales = slice_rows(c.x_scales.view(), r, 1)};
      one.x.format = Format::kFp8Group;
      one.w.values = make_view(c.codes.data() + e * kN * kK / 2, {kN, kK}, Format::kNvfp4);
      one.w.scales = slice_rows(c.scales.view(), e, 1);
      one.w.global = slice_rows(c.global.view(), e, 1);
      FATHOM_EXPECT_OK(launch<Nvfp4Fp8Gemm>(ex.with("nvfp4_fp8_gemm", "portable"), "test", one));
    }
    for (int64_t n = 0; n < kN; ++n) {
      if (e < 0) {
        EXPECT_TRUE(std::isnan(c.y[r * kN + n])) << "row " << r << " of no expert was written";
      } else {
        EXPECT_EQ(c.y[r * kN + n], alone[n]) << "row " << r << " column " << n;
      }
    }
  }
}

TEST(Nvfp4Fp8GroupGemm, RefusesWhatDoesNotFit) {
  TestExec ex;
  Call c;
  const TestTensor few({kRows - 1, 1}, Format::kF32);
  Nvfp4Fp8GroupGemm::Args a = c.args();
  a.x_scales = few.view();
  EXPECT_NE(launch<Nvfp4Fp8GroupGemm>(*ex, "test", a).message().find("expected [6, 1] f32"),
            std::string::npos);
  a = c.args();
  const TestTensor back({kExperts + 1}, Format::kI32, std::vector<float>{1, 3, 2, 5});
  a.offsets = back.view();
  EXPECT_NE(launch<Nvfp4Fp8GroupGemm>(*ex, "test", a).message().find("offsets[2] is 2"),
            std::string::npos);
}

}  // namespace
}  // namespace fathom
