#include "fathom/weights/plan/placement.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr Placement kHost;
constexpr Placement kGpu{.device = DeviceKind::kCuda};

TEST(Placement, OfAHostPutsWhatHasTilesInTiles) {
  for (const Format f :
       {Format::kBf16, Format::kFp8Block, Format::kFp8BlockUe8m0, Format::kNvfp4}) {
    EXPECT_EQ(kHost.layout(f, 128), WeightLayout::kRows16) << format_name(f);
    EXPECT_EQ(kHost.row_step(f), 16) << format_name(f);
  }
  for (const Format f : {Format::kF32, Format::kFp8Channel, Format::kInt8Channel, Format::kW4Fp8}) {
    EXPECT_EQ(kHost.layout(f, 128), WeightLayout::kRowMajor) << format_name(f);
    EXPECT_EQ(kHost.row_step(f), 1) << format_name(f);
  }
}

TEST(Placement, OfAGpuKeepsRowsAndPairsTheCodesOfNvfp4) {
  EXPECT_EQ(kGpu.layout(Format::kBf16, 128), WeightLayout::kRowMajor);
  EXPECT_EQ(kGpu.layout(Format::kFp8Block, 128), WeightLayout::kRowMajor);
  EXPECT_EQ(kGpu.layout(Format::kNvfp4, 128), WeightLayout::kPairs);
  EXPECT_EQ(kGpu.layout(Format::kNvfp4, 48), WeightLayout::kRowMajor) << "no multiple of 32";
  EXPECT_EQ(kGpu.row_step(Format::kFp8Block), 128) << "one row of scales serves so many";
  EXPECT_EQ(kGpu.row_step(Format::kBf16), 1);
  EXPECT_EQ(kGpu.row_step(Format::kNvfp4), 1);
}

TEST(Placement, PackedRowsStayTogetherAnywhere) {
  for (const Placement& p : {kHost, kGpu}) {
    EXPECT_EQ(p.row_step(Format::kW4a8Channel), 32);
    EXPECT_EQ(p.row_step(Format::kW4a8Group), 32);
  }
}

}  // namespace
}  // namespace fathom
