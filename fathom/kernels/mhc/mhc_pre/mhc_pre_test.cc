#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"

#include <cmath>

#include "fathom/device/described_gpu.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

/// mhc_pre of streams of one channel; fn is zero, so that base alone makes the numbers.
class MhcPreByBase : public testing::TestWithParam<std::string> {
 protected:
  /// Logits of pre, post and comb of four streams.
  void run(const std::vector<float>& pre,
           const std::vector<float>& post,
           const std::vector<float>& comb) {
    std::vector<float> base = pre;
    base.insert(base.end(), post.begin(), post.end());
    base.insert(base.end(), comb.begin(), comb.end());
    const TestTensor fn({24, 4}, Format::kF32);
    const TestTensor scale({3}, Format::kF32, 1.0f);
    const TestTensor base_tensor({24}, Format::kF32, base);
    FATHOM_EXPECT_OK(launch<MhcPre>(exec_.with("mhc_pre", GetParam()), "hc_pre",
                                    {.streams = streams_.view(),
                                     .fn = fn.view(),
                                     .base = base_tensor.view(),
                                     .scale = scale.view(),
                                     .x = x_.view(),
                                     .post = post_.view(),
                                     .comb = comb_.view()}));
  }

  TestExec exec_;
  TestTensor streams_{{1, 4, 1}, Format::kF32, {1, 2, 3, 4}};
  TestTensor x_{{1, 1}, Format::kF32, NAN};
  TestTensor post_{{1, 4}, Format::kF32, NAN};
  TestTensor comb_{{1, 4, 4}, Format::kF32, NAN};
};

const std::vector<float> kZeros(4, 0.0f);

TEST_P(MhcPreByBase, CombIsTheSinkhornMatrixOfTwentyIterations) {
  run(kZeros, kZeros, {1, 0, -1, .5f, .2f, 2, .1f, -.3f, -.5f, 0, 1.5f, .3f, 0, .4f, -.2f, .8f});

  expect_near(comb_.values(),
              {.527439, .116047, .066253, .290260, .166438, .602189, .139778, .091595, .092053,
               .090768, .631298, .185879, .214069, .190995, .162670, .432264},
              1.5e-6);
}

TEST_P(MhcPreByBase, EpsilonIsInPreAndNotInPost) {
  run({-40, -40, -40, -40}, {-40, -40, 0, 40}, std::vector<float>(16, 0.0f));

  EXPECT_NEAR(x_[0], 1e-6 * (1 + 2 + 3 + 4), 1e-10);
  expect_near(post_.values(), {0, 0, 1, 2}, 1e-8);
}

TEST_P(MhcPreByBase, StreamsAreWeightedByTheSigmoidOfTheFirstRows) {
  run({0, 1, -1, 2}, kZeros, std::vector<float>(16, 0.0f));

  EXPECT_NEAR(x_[0], .5 + 2 * .7310586 + 3 * .2689414 + 4 * .8807971 + 1e-5, 2e-6);
}

INSTANTIATE_TEST_SUITE_P(Variants,
                         MhcPreByBase,
                         testing::ValuesIn(variants_of<MhcPre>()),
                         [](const auto& variant) { return variant.param; });

/// Random operands of mhc_pre.
struct Operands {
  TestTensor streams, fn, base, scale, x, post, comb;

  Operands(int64_t tokens, int64_t n, int64_t width, Format format = Format::kBf16)
      : streams({tokens, n, width}, format),
        fn({n * (n + 2), n * width}, Format::kF32),
        base({n * (n + 2)}, Format::kF32),
        scale({3}, Format::kF32, {0.7f, 1.1f, 1.3f}),
        x({tokens, width}, format, NAN),
        post({tokens, n}, Format::kF32, NAN),
        comb({tokens, n, n}, Format::kF32, NAN) {
    Rng rng(11);
    streams.randomise(rng, 3.0f);
    fn.randomise(rng, 0.02f);
    base.randomise(rng, 1.0f);
  }

  MhcPre::Args args() const {
    return {.streams = streams.view(),
            .fn = fn.view(),
            .base = base.view(),
            .scale = scale.view(),
            .x = x.view(),
            .post = post.view(),
            .comb = comb.view()};
  }
};

TEST(MhcPre, ColumnsOfCombSumToOne) {
  TestExec exec;
  for (const std::string& variant : variants_of<MhcPre>()) {
    const Operands o(9, 4, 300);
    FATHOM_EXPECT_OK(launch<MhcPre>(exec.with("mhc_pre", variant), "hc_pre", o.args()));
    for (int64_t t = 0; t < 9; ++t) {
      for (int64_t k = 0; k < 4; ++k) {
        float sum = 0;
        for (int64_t j = 0; j < 4; ++j)
          sum += o.comb[(t * 4 + j) * 4 + k];
        EXPECT_NEAR(sum, 1.0f, 3e-6f) << variant << " token " << t << " column " << k;
      }
    }
  }
}

TEST(MhcPre, TokenHasTheSameBitsAtAnyNumberOfThreads) {
  for (const std::string& variant : variants_of<MhcPre>()) {
    const Operands one(5, 4, 2500);
    const Operands three(5, 4, 2500);
    TestExec alone(1);
    TestExec pool(3);
    FATHOM_EXPECT_OK(launch<MhcPre>(alone.with("mhc_pre", variant), "hc_pre", one.args()));
    FATHOM_EXPECT_OK(launch<MhcPre>(pool.with("mhc_pre", variant), "hc_pre", three.args()));

    EXPECT_EQ(one.x.bytes(), three.x.bytes()) << variant;
    EXPECT_EQ(one.post.bytes(), three.post.bytes()) << variant;
    EXPECT_EQ(one.comb.bytes(), three.comb.bytes()) << variant;
  }
}

TEST(MhcPre, NanStaysInItsToken) {
  TestExec exec;
  for (const std::string& variant : variants_of<MhcPre>()) {
    Operands o(3, 4, 50, Format::kF32);
    o.streams.set(1 * 200 + 3 * 50 + 7, NAN);
    FATHOM_EXPECT_OK(launch<MhcPre>(exec.with("mhc_pre", variant), "hc_pre", o.args()));
    for (int64_t i = 0; i < 150; ++i)
      EXPECT_EQ(std::isnan(o.x[i]), i / 50 == 1) << variant << " " << i;
    for (int64_t i = 0; i < 48; ++i)
      EXPECT_EQ(std::isnan(o.comb[i]), i / 16 == 1) << variant << " " << i;
  }
}

TEST(MhcPre, SquaresBeyondFloat32LeaveTheBaseAlone) {
  TestExec exec;
  for (const std::string& variant : variants_of<MhcPre>()) {
    Operands o(1, 4, 16, Format::kF32);
    for (int64_t i = 0; i < 64; ++i)
      o.streams.set(i, 1e20f);
    for (int64_t i = 0; i < 24; ++i)
      o.base.set(i, 0.0f);
    FATHOM_EXPECT_OK(launch<MhcPre>(exec.with("mhc_pre", variant), "hc_pre", o.args()));
    for (int64_t j = 0; j < 4; ++j)
      EXPECT_EQ(o.post[j], 1.0f) << variant;
  }
}

TEST(MhcPre, RefusesNoIterationAndTwoFormats) {
  TestExec exec;
  const Operands o(1, 4, 8);
  MhcPre::Args args = o.args();
  args.iterations = 0;
  EXPECT_NE(launch<MhcPre>(*exec, "hc_pre", args).message().find("iterations is 0, expected 1"),
            std::string::npos);

  const TestTensor wide({1, 8}, Format::kF32);
  args = o.args();
  args.x = wide.view();
  EXPECT_NE(launch<MhcPre>(*exec, "hc_pre", args).message().find("streams is bf16 but x is f32"),
            std::string::npos);
}

TEST(MhcPre, RefusesAFunctionOfOtherRows) {
  TestExec exec;
  const Operands o(1, 4, 8);
  const TestTensor fn({23, 32}, Format::kF32);
  const TestTensor base({23}, Format::kF32);
  MhcPre::Args args = o.args();
  args.fn = fn.view();
  args.base = base.view();

  const Status status = launch<MhcPre>(*exec, "hc_pre", args);

  EXPECT_NE(status.message().find("Q==2*n+n*n"), std::string::npos) << status.message();
}

TEST(MhcHead, HasNoFactorTwoAndNoMixing) {
  TestExec exec;
  for (const std::string& variant : variants_of<MhcHead>()) {
    const TestTensor streams({1, 2, 1}, Format::kF32, {10, 100});
    const TestTensor fn({2, 2}, Format::kF32);
    const TestTensor base({2}, Format::kF32, {0, 3});
    const TestTensor scale({1}, Format::kF32, 1.0f);
    const TestTensor h({1, 1}, Format::kF32, NAN);
    FATHOM_EXPECT_OK(launch<MhcHead>(exec.with("mhc_head", variant), "hc_head",
                                     {.streams = streams.view(),
                                      .fn = fn.view(),
                                      .base = base.view(),
                                      .scale = scale.view(),
                                      .h = h.view()}));
    EXPECT_NEAR(h[0], 10 * .5 + 100 * .9525741 + 110e-6, 2e-5) << variant;
  }
}

TEST(MhcPre, OnAGpuFewTokensAndTilesTakeTheWidthsOfModels) {
  const auto h200 = described_gpu("h200");
  ASSERT_TRUE(h200.has_value());
  const auto variant_for = [&](int64_t tokens, int64_t width) {
    const TestTensor streams({tokens, 4, width}, Format::kBf16);
    const TestTensor fn({24, 4 * width}, Format::kF32);
    const TestTensor base({24}, Format::kF32);
    const TestTensor scale({3}, Format::kF32);
    const TestTensor x({tokens, width}, Format::kBf16);
    const TestTensor post({tokens, 4}, Format::kF32);
    const TestTensor comb({tokens, 4, 4}, Format::kF32);
    return gpu_variant_for<MhcPre>({.streams = streams.view(),
                                    .fn = fn.view(),
                                    .base = base.view(),
                                    .scale = scale.view(),
                                    .x = x.view(),
                                    .post = post.view(),
                                    .comb = comb.view()},
                                   &*h200);
  };
  if (variant_for(1, 1).empty()) GTEST_SKIP() << "this build knows no kernels of a GPU";

  EXPECT_EQ(variant_for(1, 4096), "few_tokens");
  EXPECT_EQ(variant_for(32, 4096), "few_tokens");
  EXPECT_EQ(variant_for(33, 4096), "resident_tiles");
  EXPECT_EQ(variant_for(33, 7168), "token_tiles");
  EXPECT_EQ(variant_for(1, 7168), "few_tokens");
  EXPECT_EQ(variant_for(1, 1536), "token_tiles") << "a width of no model";
  EXPECT_EQ(variant_for(1, 100), "any_layout");
}

}  // namespace
}  // namespace fathom
