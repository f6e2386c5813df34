#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/weights/loader.h"
#include "tests/support/test_checkpoint.h"

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(VerifyTensors, ListsMissingOnes) {
  TestCheckpoint files;
  files.matrix("model.layers.0.x.weight", 16, 16, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"N", 16}}), tensors_of(checkpoint));
  LinearWeight w[8];
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(
        plan.matrix(str_cat("model.layers.", i, ".x.weight"), "N,N", WeightRole::kMlp, &w[i]).ok());
  }

  const auto report = verify_tensors(plan, checkpoint, 8);

  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(report.status().message(),
              HasSubstr("7 tensors are missing: model.layers.1.x.weight, model.layers.2.x.weight"));
  EXPECT_THAT(report.status().message(), HasSubstr(", ..."));
}

TEST(VerifyTensors, NamesFileTensorFoundAndExpected) {
  TestCheckpoint files;
  files.matrix("x.weight", 16, 32, Format::kBf16);
  files.vector("norm.weight", {1, 2, 3}, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  for (const bool vector : {false, true}) {
    WeightPlan plan(symbols({{"H", 16}, {"N", 48}}),
                    [](const WeightSpec&) -> Result<Format> { return Format::kBf16; });
    LinearWeight w;
    View v;
    ASSERT_TRUE(vector ? plan.vector("norm.weight", "H", WeightRole::kNorm, &v).ok()
                       : plan.matrix("x.weight", "H,N", WeightRole::kMlp, &w).ok());

    const auto report = verify_tensors(plan, checkpoint, 1);

    ASSERT_FALSE(report.ok());
    EXPECT_THAT(report.status().message(), HasSubstr("model.safetensors"));
    EXPECT_THAT(report.status().message(),
                HasSubstr(vector ? "shape [3], expected H = [16]"
                                 : "shape [16, 32], expected H,N = [16, 48]"));
  }
}

TEST(VerifyTensors, RefusesALayerBeyondTheLastOneThatIsNoDraftLayer) {
  TestCheckpoint files;
  files.matrix("model.layers.0.x.weight", 16, 16, Format::kBf16);
  files.matrix("model.layers.1.x.weight", 16, 16, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"N", 16}}), tensors_of(checkpoint));
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("model.layers.0.x.weight", "N,N", WeightRole::kMlp, &w).ok());

  const auto report = verify_tensors(plan, checkpoint, 1);

  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(report.status().message(), HasSubstr("model.layers.1.x.weight\" at byte "));
  EXPECT_THAT(report.status().message(), HasSubstr("belongs to layer 1"));
}

TEST(VerifyTensors, ListsSurplusAndToleratesDraftLayers) {
  TestCheckpoint files;
  files.matrix("model.layers.0.x.weight", 16, 128, Format::kFp8Block);
  files.vector("model.layers.0.x.rotary_emb.inv_freq", {1}, Format::kF32);
  files.vector("model.layers.0.stranger", {1}, Format::kF32);
  files.matrix("model.layers.1.x.weight", 16, 16, Format::kBf16);
  files.vector("model.layers.1.enorm.weight", {1}, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"N", 16}, {"K", 128}}), tensors_of(checkpoint));
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("model.layers.0.x.weight", "N,K", WeightRole::kMlp, &w).ok());

  const auto report = verify_tensors(plan, checkpoint, 1);

  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_THAT(report->surplus, ElementsAre("model.layers.0.stranger"));
  EXPECT_EQ(report->draft_tensors, 2);
}

TEST(WeightPlan, NamesFileAndByteOfATensorInAFormatThatItCannotTake) {
  TestCheckpoint files;
  files.vector("norm.weight", {1, 2}, Format::kF16);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"H", 2}}), tensors_of(checkpoint));
  View v;

  const Status status = plan.vector("norm.weight", "H", WeightRole::kNorm, &v);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors: tensor \"norm.weight\" at byte "));
  EXPECT_THAT(status.message(), HasSubstr("is stored as f16, expected bf16 or f32"));
}

// 7 rows fit no stack, but it is config.json that says 7.
TEST(WeightPlan, ComparesShapesBeforeTheLimitsOfALayout) {
  TestCheckpoint files;
  files.matrix("e.0.weight", 64, 32, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"H", 7}, {"I", 32}}), tensors_of(checkpoint));
  LinearWeight w;

  const Status status = plan.stack({{"e.{}.weight", "H,I"}}, 1, "E,H,I", WeightRole::kExpert, &w);

  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors: tensor \"e.0.weight\" at byte "));
  EXPECT_THAT(status.message(), HasSubstr("has shape [64, 32], expected H,I = [7, 32]"));
}

TEST(WeightPlan, RefusesExpertsOfDifferentFormats) {
  TestCheckpoint files;
  files.matrix("e.0.weight", 16, 64, Format::kNvfp4);
  files.matrix("e.1.weight", 16, 64, Format::kBf16);
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"N", 16}, {"K", 64}}), tensors_of(checkpoint));
  LinearWeight w;

  const Status status = plan.stack({{"e.{}.weight", "N,K"}}, 2, "E,N,K", WeightRole::kExpert, &w);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              testing::ContainsRegex(
                  "e.1.weight\" at byte [0-9]+ is stored as bf16, but e.0.weight as nvfp4"));
}

TEST(WeightPlan, RefusesFormatsWithoutAKernel) {
  const auto plan_with = [](Format format) {
    WeightPlan plan(symbols({{"N", 16}}),
                    [format](const WeightSpec&) -> Result<Format> { return format; });
    LinearWeight w;
    return plan.matrix("x.weight", "N,N", WeightRole::kMlp, &w);
  };
  for (Format format : {Format::kF16, Format::kW4Fp8, Format::kFp8Group}) {
    EXPECT_EQ(plan_with(format).code(), StatusCode::kUnsupported) << format_name(format);
    EXPECT_THAT(plan_with(format).message(), HasSubstr(std::string(format_name(format))));
  }
  EXPECT_THAT(plan_with(Format::kW4a8Channel).message(),
              HasSubstr("has 16 rows; packed weights need a multiple of 32"));
}

TEST(WeightPlan, DryStoreBindsShapesWithoutMemory) {
  WeightPlan plan(symbols({{"N", 1 << 20}, {"K", 1 << 20}}),
                  [](const WeightSpec&) -> Result<Format> { return Format::kNvfp4; });
  LinearWeight w;
  ASSERT_TRUE(plan.matrix("x.weight", "N,K", WeightRole::kMlp, &w).ok());

  const WeightStore store = WeightStore::dry(plan);

  EXPECT_EQ(store.data(), nullptr);
  EXPECT_EQ(w.w.values.data, nullptr);
  EXPECT_EQ(w.w.rows(), 1 << 20);
  EXPECT_TRUE(w.w.global.present());
  EXPECT_NEAR(static_cast<double>(store.bytes()), 9.0 / 16.0 * 0x1p40, 0x1p24);
}

TEST(WeightPlan, InputsInNvfp4HaveAScaleAndItsInverseForEachExpert) {
  TestCheckpoint files;
  for (int e = 0; e < 3; ++e)
    files.matrix(str_cat("e.", e, ".weight"), 16, 64, Format::kNvfp4);
  files.matrix("none.weight", 16, 64, Format::kNvfp4);
  files.matrix("mx.weight", 16, 64, Format::kMxfp4);
  files.scalar("e.0.input_scale", 0.5f);
  files.scalar("e.2.input_scale", 0.75f);  // the second expert was never reached
  const Checkpoint checkpoint = files.open();
  WeightPlan plan(symbols({{"E", 3}, {"N", 16}, {"K", 64}}), tensors_of(checkpoint));
  LinearWeight exact, stack, none, mx;
  ASSERT_TRUE(plan.matrix("e.0.weight", "N,K", WeightRole::kMlp, &exact).ok());
  plan.set_nvfp4_inputs(Nvfp4Inputs::kQuantised);
  ASSERT_TRUE(plan.stack({{"e.{}.weight", "N,K"}}, 3, "E,N,K", WeightRole::kExpert, &stack).ok());
  ASSERT_TRUE(plan.matrix("none.weight", "N,K", WeightRole::kMlp, &none).ok());
  ASSERT_TRUE(plan.matrix("mx.weight", "N,K", WeightRole::kMlp, &mx).ok());

  ThreadPool pool(1, PinThreads::kNo);

  const WeightStore store = load_weights(plan, checkpoint, pool).value();

  const auto values = [](const View& v) {
    return std::vector<float>(v.as<float>(), v.as<float>() + v.numel());
  };
  EXPECT_THAT(values(stack.input_scale), ElementsAre(0.5f, 0.75f, 0.75f));
  EXPECT_THAT(values(stack.input_gs), ElementsAre(2.0f, 1.0f / 0.75f, 1.0f / 0.75f));
  EXPECT_THAT(values(none.input_gs), ElementsAre(1.0f));
  EXPECT_FALSE(exact.quantises_input() || mx.quantises_input());
}

}  // namespace
}  // namespace fathom
