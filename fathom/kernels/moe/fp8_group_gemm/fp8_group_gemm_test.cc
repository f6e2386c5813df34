#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>

#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/conformance/operands/generate.h"
#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/cpu/products/products.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_gemm.h"
#include "fathom/kernels/moe/fp8_group_gemm/skewed_schedule.h"

namespace fathom {
namespace {

/// Experts in the reference's layout, rows quantised in groups of 128.
class QuantisedGroups {
 public:
  static constexpr int64_t kN = 48, kK = 256, kBlocks = kK / 128;

  explicit QuantisedGroups(std::vector<int32_t> counts)
      : experts(static_cast<int64_t>(counts.size())),
        rows(std::accumulate(counts.begin(), counts.end(), int64_t{0})),
        x({rows, kK}, Format::kE4m3),
        x_scales({rows, kBlocks}, Format::kF32),
        offsets({experts + 1}, Format::kI32),
        y({rows, kN}, Format::kF32, NAN),
        codes_(static_cast<size_t>(experts * kN * kK)),
        scales_(static_cast<size_t>(experts * kBlocks)) {
    Rng rng(17, 1);
    x.randomise(rng, 3.0f);
    for (int64_t i = 0; i < x_scales.size(); ++i)
      x_scales.set(i, 0.01f * (1.0f + rng.next_uniform()));
    for (int64_t e = 0; e < experts; ++e)
      offsets.set(e + 1, offsets[e] + static_cast<float>(counts[static_cast<size_t>(e)]));
    for (E4m3& code : codes_)
      code = e4m3_from_float(rng.next_normal());
    for (float& scale : scales_)
      scale = 0.02f * (1.0f + rng.next_uniform());
  }

  QuantView weight() {
    QuantView w;
    w.values = make_view(codes_.data(), {experts, kN, kK}, Format::kFp8Block);
    w.scales = make_view(scales_.data(), {experts, 1, kBlocks}, Format::kF32);
    return w;
  }

  QuantView matrix(int64_t e) {
    QuantView w;
    w.values = make_view(codes_.data() + e * kN * kK, {kN, kK}, Format::kFp8Block);
    w.scales = make_view(scales_.data() + e * kBlocks, {1, kBlocks}, Format::kF32);
    return w;
  }

  View codes() const {
    View v = x.view();
    v.format = Format::kFp8Group;
    return v;
  }

  Fp8GroupGemm::Args args() {
    return {.x = codes(),
            .w = weight(),
            .offsets = offsets.view(),
            .y = y.view(),
            .x_scales = x_scales.view()};
  }

  int64_t experts, rows;
  TestTensor x, x_scales, offsets, y;

 private:
  std::vector<E4m3> codes_;
  std::vector<float> scales_;
};

TEST(Fp8GroupGemm, ARowHasTheBitsOfTheBlockGemmWithItsExpert) {
  TestExec ex;
  QuantisedGroups g({3, 0, 14, 1});
  FATHOM_EXPECT_OK(launch<Fp8GroupGemm>(*ex, "test", g.args()));

  for (int64_t e = 0; e < g.experts; ++e) {
    const auto begin = static_cast<int64_t>(g.offsets[e]);
    const auto count = static_cast<int64_t>(g.offsets[e + 1]) - begin;
    const TestTensor y({count, QuantisedGroups::kN}, Format::kF32, NAN);
    View x = slice_rows(g.x.view(), begin, count);
    x.format = Format::kFp8Group;
    FATHOM_EXPECT_OK(
        launch<Fp8BlockGemm>(*ex, "test",
                             {.x = x,
                              .w = g.matrix(e),
                              .y = y.view(),
                              .x_scales = slice_rows(g.x_scales.view(), begin, count)}));
    for (int64_t i = 0; i < y.size(); ++i)
      ASSERT_EQ(y[i], g.y[begin * QuantisedGroups::kN + i]) << "expert " << e << ", element " << i;
  }
}

TEST(Fp8GroupGemm, TheSkewedScheduleHasTheSameBits) {
  for (const std::vector<int32_t>& counts :
       {std::vector<int32_t>{200, 0, 1, 2, 70, 3, 1, 0, 63, 64}, {1, 1, 1, 1}, {300}, {0, 0}}) {
    for (int threads : {1, 2, 5}) {
      TestExec ex(threads);
      QuantisedGroups plain(counts), skewed(counts);
      FATHOM_EXPECT_OK(launch<Fp8GroupGemm>(*ex, "test", plain.args()));
      FATHOM_EXPECT_OK(launch<Fp8GroupGemmSkewed>(*ex, "test", skewed.args()));

      EXPECT_EQ(plain.y.bytes(), skewed.y.bytes()) << threads << " threads";
    }
  }
}

TEST(Fp8GroupGemm, NanInARowOrItsScaleStaysInThatRow) {
  TestExec ex;
  for (const std::string& variant : variants_of<Fp8GroupGemm>()) {
    QuantisedGroups g({2, 3});
    g.x.set(1 * QuantisedGroups::kK + 7, NAN);
    g.x_scales.set(3 * QuantisedGroups::kBlocks, NAN);
    Exec& pinned = ex.with("fp8_group_gemm", variant);
    if (!why_not<Fp8GroupGemm>(pinned, "test", g.args()).empty()) continue;
    FATHOM_EXPECT_OK(launch<Fp8GroupGemm>(pinned, "test", g.args()));

    for (int64_t i = 0; i < g.y.size(); ++i) {
      const int64_t row = i / QuantisedGroups::kN;
      ASSERT_EQ(std::isnan(g.y[i]), row == 1 || row == 3) << variant << ", element " << i;
    }
  }
}

TEST(Fp8GroupGemm, RefusesScalesAndOffsetsThatDoNotFit) {
  TestExec ex;
  QuantisedGroups g({2, 3});
  Fp8GroupGemm::Args args = g.args();
  const auto error = [&] { return launch<Fp8GroupGemm>(*ex, "test", args).message(); };

  args.x_scales = {};
  EXPECT_NE(error().find("expected [5, 2] f32 for x of fp8_group"), std::string::npos) << error();
  args = g.args();
  const TestTensor x({5, QuantisedGroups::kK}, Format::kBf16);
  args.x = x.view();
  EXPECT_NE(error().find("but x is bf16, which has none"), std::string::npos) << error();
  args = g.args();
  g.offsets.set(1, 6);
  EXPECT_NE(error().find("offsets[1] is 6, expected 0 to 5"), std::string::npos) << error();
}

TEST(SkewedSchedule, DealsLightExpertsEvenlyAndSharesHeavyOnes) {
  const std::vector<int32_t> counts = {500, 0, 30, 1, 1, 28, 64, 2, 1, 63};
  std::vector<int32_t> offsets = {0};
  for (int32_t count : counts)
    offsets.push_back(offsets.back() + count);
  Products p;
  p.num_matrices = static_cast<int64_t>(counts.size());
  p.offsets = offsets.data();
  std::vector<int32_t> order(counts.size()), owner(counts.size());

  deal_experts(p, 3, order.data(), owner.data());

  std::vector<int64_t> work(3);
  int64_t largest = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    const bool light = counts[e] > 0 && counts[e] < kHeavyRows;
    EXPECT_EQ(owner[e] >= 0, light) << "expert " << e;
    if (!light) continue;
    ASSERT_LT(owner[e], 3);
    work[static_cast<size_t>(owner[e])] += counts[e] + 6;
    largest = std::max<int64_t>(largest, counts[e] + 6);
  }
  // Longest first never leaves two threads further apart than the largest piece.
  EXPECT_LE(
      *std::max_element(work.begin(), work.end()) - *std::min_element(work.begin(), work.end()),
      largest);
}

TEST(SkewedSchedule, SharesEveryExpertWhereThereAreFewerThanThreads) {
  const std::vector<int32_t> offsets = {0, 5, 5, 9};
  Products p;
  p.num_matrices = 3;
  p.offsets = offsets.data();
  std::vector<int32_t> order(3), owner(3);

  deal_experts(p, 4, order.data(), owner.data());

  EXPECT_EQ(owner, (std::vector<int32_t>{-1, -1, -1}));
}

}  // namespace
}  // namespace fathom
