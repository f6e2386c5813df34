#include "fathom/weights/weight_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::HasSubstr;

TEST(WeightPlan, RefusesAStackOfNarrowMatricesEvenOfOne) {
  SymbolTable symbols;
  symbols.set("E", 1);
  symbols.set("H", 8);
  symbols.set("I", 16);
  WeightPlan plan(symbols, [](const WeightSpec&) -> Result<Format> { return Format::kBf16; });
  LinearWeight w;

  const Status status = plan.stack({{"e.{}.weight", "H,I"}}, 1, "E,H,I", WeightRole::kExpert, &w);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("e.0.weight has 8 rows"));
}

TEST(WeightPlan, RefusesALatentThatTheAbsorbedFormCannotTake) {
  SymbolTable symbols;
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, int64_t>>{{"Nh", 2}, {"Dn", 16}, {"Dv", 16}, {"Lkv", 17}})
    symbols.set(name, value);
  WeightPlan plan(symbols, [](const WeightSpec&) -> Result<Format> { return Format::kBf16; });
  LinearWeight kv_b, w_kc, w_vc;
  ASSERT_TRUE(plan.matrix("kv_b.weight", "Nh*(Dn+Dv),Lkv", WeightRole::kAttention, &kv_b).ok());

  const Status status = plan.absorbed(16, 16, Format::kBf16, &w_kc, &w_vc);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("kv_lora_rank (17) and v_head_dim (16)"));
}

WeightPlan gpu_plan(Format format, bool same_scale) {
  SymbolTable symbols;
  symbols.set("E", 4);
  symbols.set("H", 256);
  symbols.set("I", 192);
  return WeightPlan(
      symbols,
      TensorSource{.format = [=](const WeightSpec&) -> Result<Format> { return format; },
                   .same_global_scale = [=](const WeightSpec&, const WeightSpec&) -> Result<bool> {
                     return same_scale;
                   }},
      {.device = DeviceKind::kCuda});
}

Status declare_pair(WeightPlan& plan, RowsWeight& w) {
  return plan.stack_rows({"e.{}.gate", "I,H"}, {"e.{}.up", "I,H"}, 4, "E,2*I,H", "E,I,H",
                         WeightRole::kExpert, &w);
}

TEST(GpuWeightPlan, KeepsRowsAndScalesWhereTheCheckpointHasThem) {
  WeightPlan plan = gpu_plan(Format::kNvfp4, true);
  RowsWeight w;
  ASSERT_TRUE(declare_pair(plan, w).ok());

  plan.bind(nullptr);

  ASSERT_EQ(w.num_parts, 1);
  const QuantView& m = w.parts[0].w;
  EXPECT_EQ(m.layout, WeightLayout::kPairs);
  EXPECT_EQ(describe(m.values), "[4, 384, 256] nvfp4");
  EXPECT_EQ(describe(m.scales), "[4, 384, 16] e4m3");
  EXPECT_EQ(describe(m.global), "[4] f32");
  EXPECT_GE(plan.total_bytes(), 4 * (384 * 128 + 384 * 16) + 32);
}

// One matrix has one global scale, and one row of blocks of 128 x 128 one row of scales.
TEST(GpuWeightPlan, SplitsWhatCannotLieInOneMatrix) {
  RowsWeight scales_differ;
  WeightPlan nvfp4 = gpu_plan(Format::kNvfp4, false);
  ASSERT_TRUE(declare_pair(nvfp4, scales_differ).ok());
  RowsWeight blocks_cut;
  WeightPlan fp8 = gpu_plan(Format::kFp8Block, true);
  ASSERT_TRUE(declare_pair(fp8, blocks_cut).ok());
  fp8.bind(nullptr);

  EXPECT_EQ(scales_differ.num_parts, 2);
  EXPECT_EQ(blocks_cut.num_parts, 2);
  EXPECT_EQ(describe(blocks_cut.parts[0].w.values), "[4, 192, 256] fp8_block");
  EXPECT_EQ(describe(blocks_cut.parts[1].w.scales), "[4, 2, 2] f32");
}

}  // namespace
}  // namespace fathom
