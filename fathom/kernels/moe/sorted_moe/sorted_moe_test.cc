#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

#include <gtest/gtest.h>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/conformance/operands/generate.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/route/route.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

// Both strategies of a MoE layer on the same tokens: sorted_moe_gemm on aligned slots, and permute,
// grouped GEMM, back by dest.
class SortedMoe : public testing::TestWithParam<Format> {
 protected:
  static constexpr int64_t kTokens = 21, kTopK = 3, kExperts = 6, kN = 48, kK = 192;
  static constexpr int64_t kSlots = kTokens * kTopK;

  SortedMoe() {
    ex_.kernels = &cpu_kernels();
    ex_.pool = &pool_;
    ex_.scratch = &scratch_;
    ex_.num_threads = 2;
    Rng rng(11);
    for (int32_t& id : ids_)
      id = static_cast<int32_t>(rng.next_below(kExperts + 1)) - 1;
    for (Bf16& v : x_)
      v = bf16_from_float(rng.next_normal());
    const CaseWeightSpec spec{
        .num_experts = kExperts, .rows = kN, .cols = kK, .format = GetParam()};
    const WeightBytes bytes = weight_bytes(spec);
    values_.resize(static_cast<size_t>(bytes.values));
    scales_.resize(static_cast<size_t>(bytes.scales / 4));
    global_.resize(static_cast<size_t>(bytes.global / 4));
    generate_weight(spec, rng,
                    {values_.data(), reinterpret_cast<std::byte*>(scales_.data()), global_.data()},
                    nullptr);
    w_.layout = WeightLayout::kRows16;
    w_.values = make_view(values_.data(), {kExperts, kN, kK}, GetParam());
    if (!scales_.empty()) {
      w_.scales = make_view(scales_.data(), {bytes.scales / 4}, Format::kF32);
    }
    if (!global_.empty()) w_.global = make_view(global_.data(), {bytes.global / 4}, Format::kF32);
  }

  static View ints(std::vector<int32_t>& v) {
    return make_view(v.data(), {static_cast<int64_t>(v.size())}, Format::kI32);
  }

  View ids() { return make_view(ids_.data(), {kTokens, kTopK}, Format::kI32); }

  View x() { return make_view(x_.data(), {kTokens, kK}, Format::kBf16); }

  std::vector<Bf16> sorted() {
    constexpr int kBlock = 8;
    std::vector<int32_t> sorted_ids(
        static_cast<size_t>(AlignExperts::capacity(kSlots, kExperts, kBlock)));
    std::vector<int32_t> block_expert(sorted_ids.size() / kBlock), padded(1);
    std::vector<Bf16> y(kSlots * kN);
    EXPECT_TRUE(launch<AlignExperts>(ex_, "align",
                                     {.ids = ids(),
                                      .sorted_ids = ints(sorted_ids),
                                      .block_expert = ints(block_expert),
                                      .num_padded = ints(padded),
                                      .block = kBlock,
                                      .num_experts = kExperts})
                    .ok());
    const Status status =
        launch<SortedMoeGemm>(ex_, "experts",
                              {.x = x(),
                               .w = w_,
                               .sorted_ids = ints(sorted_ids),
                               .block_expert = ints(block_expert),
                               .num_padded = ints(padded),
                               .y = make_view(y.data(), {kSlots, kN}, Format::kBf16),
                               .block = kBlock,
                               .top_k = kTopK});
    EXPECT_TRUE(status.ok()) << status.message();
    return y;
  }

  std::vector<Bf16> grouped() {
    std::vector<int32_t> offsets(kExperts + 1), src_row(kSlots), dest(kSlots);
    std::vector<Bf16> permuted(kSlots * kK), products(kSlots * kN), y(kSlots * kN);
    EXPECT_TRUE(
        launch<RouteOffsets>(ex_, "route",
                             {.ids = ids(),
                              .offsets = ints(offsets),
                              .src_row = ints(src_row),
                              .dest = make_view(dest.data(), {kTokens, kTopK}, Format::kI32)})
            .ok());
    const View px = make_view(permuted.data(), {kSlots, kK}, Format::kBf16);
    const View py = make_view(products.data(), {kSlots, kN}, Format::kBf16);
    EXPECT_TRUE(
        launch<PermuteRows>(ex_, "permute", {.x = x(), .src_row = ints(src_row), .y = px}).ok());
    Status status;
    if (GetParam() == Format::kNvfp4) {
      status = launch<Nvfp4GroupGemm>(ex_, "experts",
                                      {.x = px, .w = w_, .offsets = ints(offsets), .y = py});
    } else if (GetParam() == Format::kBf16) {
      status = launch<Bf16GroupGemm>(ex_, "experts",
                                     {.x = px, .w = w_, .offsets = ints(offsets), .y = py});
    } else {
      status = launch<Fp8GroupGemm>(ex_, "experts",
                                    {.x = px, .w = w_, .offsets = ints(offsets), .y = py});
    }
    EXPECT_TRUE(status.ok()) << status.message();
    for (int64_t v = 0; v < kSlots; ++v) {
      if (dest[static_cast<size_t>(v)] < 0) continue;  // zeros, as y starts
      std::copy_n(products.data() + dest[static_cast<size_t>(v)] * kN, kN, y.data() + v * kN);
    }
    return y;
  }

  ThreadPool pool_{2, PinThreads::kNo};
  Arena scratch_{Buffer::allocate(DeviceKind::kCpu, 64 << 20, "scratch").value()};
  Exec ex_;
  std::vector<int32_t> ids_ = std::vector<int32_t>(kSlots);
  std::vector<Bf16> x_ = std::vector<Bf16>(kTokens * kK);
  std::vector<std::byte> values_;
  std::vector<float> scales_, global_;
  QuantView w_;
};

TEST_P(SortedMoe, GivesTheBitsOfTheGroupedGemmInEveryVariant) {
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    const KernelSet kernels = KernelSet::for_cpu(isa);
    ex_.kernels = &kernels;
    SCOPED_TRACE(isa_name(isa));

    EXPECT_EQ(sorted(), grouped());
  }
}

TEST_P(SortedMoe, RefusesRoutingThatPointsOutside) {
  std::vector<int32_t> sorted_ids = {0, 1}, block_expert = {0, 0}, padded = {2};
  std::vector<Bf16> y(2 * kN);
  SortedMoeGemm::Args a{.x = make_view(x_.data(), {2, kK}, Format::kBf16),
                        .w = w_,
                        .sorted_ids = ints(sorted_ids),
                        .block_expert = ints(block_expert),
                        .num_padded = ints(padded),
                        .y = make_view(y.data(), {2, kN}, Format::kBf16)};
  const auto error = [&] { return launch<SortedMoeGemm>(ex_, "experts", a).message(); };
  const auto has = [&](std::string_view text) { return error().find(text) != std::string::npos; };

  EXPECT_EQ(error(), "");
  block_expert[1] = kExperts;
  EXPECT_TRUE(has("block_expert[1] is 6, expected -1 to 5")) << error();
  block_expert[1] = 0;
  sorted_ids[0] = -1;
  EXPECT_TRUE(has("sorted_ids[0] is -1")) << error();
  sorted_ids[0] = 0;
  padded[0] = 3;
  EXPECT_TRUE(has("num_padded is 3, expected 0 to 2")) << error();
  padded[0] = 2;
  a.x.dims[0] = 1;
  EXPECT_TRUE(has("sorted_ids[1] is 1, but x has 1 rows")) << error();
  a.x.dims[0] = 2;
  a.block = 0;
  EXPECT_TRUE(has("block is 0")) << error();
  a.block = 1;
  std::vector<float> weights(3);
  a.weights = make_view(weights.data(), {3}, Format::kF32);
  EXPECT_TRUE(has("weights has 3 values, expected none or 2")) << error();
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    SortedMoe,
    testing::Values(Format::kNvfp4, Format::kBf16, Format::kFp8Block, Format::kFp8BlockUe8m0),
    [](const auto& f) { return std::string(format_name(f.param)); });

}  // namespace
}  // namespace fathom
