#include "fathom/layers/linear.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"
#include "fathom/layers/embedding.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/layers/norm.h"
#include "fathom/trace/recorder.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

using testing::HasSubstr;

// Exec with small arenas on the CPU, or dry.
struct TestExec {
  ThreadPool pool{1, PinThreads::kNo};
  Arena activations{Buffer::allocate(DeviceKind::kCpu, 1 << 20, "test").value()};
  Arena scratch{Buffer::allocate(DeviceKind::kCpu, 1 << 20, "test").value()};
  Arena dry_activations;
  Arena dry_scratch;
  Recorder recorder{RecordLevel::kShapes, 64};
  Exec ex;

  explicit TestExec(Backend backend) {
    if (backend == Backend::kCpu) ex.kernels = &cpu_kernels();
    ex.backend = backend;
    ex.pool = &pool;
    ex.activations = backend == Backend::kDry ? &dry_activations : &activations;
    ex.scratch = backend == Backend::kDry ? &dry_scratch : &scratch;
    ex.recorder = &recorder;
  }
};

LinearWeight dense_weight(std::vector<float>& values, int64_t n, int64_t k) {
  LinearWeight w;
  w.w.values = make_view(values.data(), {n, k}, Format::kF32);
  return w;
}

struct RowCase {
  Format format;
  LinearUse use;
  int64_t tokens;
  int row;
  const char* kernel;
};

class LinearTable : public testing::TestWithParam<RowCase> {};

TEST_P(LinearTable, FirstFittingRowServesAndIsRecorded) {
  const RowCase& c = GetParam();
  TestExec t(Backend::kDry);
  const View x = make_view(nullptr, {c.tokens, 256}, Format::kBf16);
  const View y = make_view(nullptr, {c.tokens, 64}, Format::kF32);

  const Status status =
      linear(t.ex, "some_proj", x, shape_only_weight(c.format, 64, 256), y, c.use);

  ASSERT_TRUE(status.ok()) << status.message();
  const auto records = t.recorder.records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_STREQ(records[0].kernel, c.kernel);
  EXPECT_EQ(records[0].selection_row, c.row);
  EXPECT_STREQ(records[0].op.name, "some_proj");
}

INSTANTIATE_TEST_SUITE_P(
    Rows,
    LinearTable,
    testing::Values(RowCase{Format::kBf16, LinearUse::kLatentDown, 16, 0, "latent_down_gemm"},
                    RowCase{Format::kBf16, LinearUse::kLatentDown, 17, 2, "bf16_gemm"},
                    RowCase{Format::kBf16, LinearUse::kRouter, 1, 1, "router_gemm"},
                    RowCase{Format::kBf16, LinearUse::kRouter, 17, 2, "bf16_gemm"},
                    RowCase{Format::kBf16, LinearUse::kAny, 1, 2, "bf16_gemm"},
                    RowCase{Format::kF32, LinearUse::kRouter, 1, 3, "bf16_gemm"},
                    RowCase{Format::kFp8Block, LinearUse::kLatentDown, 1, 4, "fp8_block_gemm"},
                    RowCase{Format::kFp8BlockUe8m0, LinearUse::kAny, 300, 5, "fp8_block_gemm"},
                    RowCase{Format::kNvfp4, LinearUse::kAny, 0, 6, "nvfp4_gemm"},
                    RowCase{Format::kMxfp4, LinearUse::kAny, 1, 11, "nvfp4_gemm"},
                    RowCase{Format::kMxfp8, LinearUse::kAny, 33, 12, "mxfp8_gemm"}));

TEST(Linear, FormatWithoutARowIsUnsupported) {
  TestExec t(Backend::kDry);
  LinearWeight w;
  w.w.values = make_view(nullptr, {64, 256}, Format::kW4Fp8);
  const View x = make_view(nullptr, {1, 256}, Format::kBf16);
  const View y = make_view(nullptr, {1, 64}, Format::kBf16);

  const Status status = linear(t.ex, "o_proj", x, w, y);

  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              HasSubstr("o_proj: no linear kernel takes weights [64, 256] w4_fp8"));
}

TEST(Linear, WrongShapeNamesTheAxis) {
  TestExec t(Backend::kDry);
  const View x = make_view(nullptr, {1, 255}, Format::kBf16);
  const View y = make_view(nullptr, {1, 64}, Format::kBf16);

  const Status status = linear(t.ex, "o_proj", x, shape_only_weight(Format::kNvfp4, 64, 256), y);

  EXPECT_THAT(status.message(), HasSubstr("256"));
  EXPECT_THAT(status.message(), HasSubstr("255"));
}

TEST(Linear, ExplainSaysWhyEarlierRowsDoNotServe) {
  TestExec t(Backend::kDry);

  const std::string text =
      explain_linear(t.ex, "gate", 100, shape_only_weight(Format::kBf16, 64, 256), Format::kBf16,
                     Format::kF32, LinearUse::kRouter);

  EXPECT_THAT(text, HasSubstr("row 0  bf16  latent_down_gemm: for another place in the model"));
  EXPECT_THAT(text, HasSubstr("row 1  bf16  router_gemm: "));
  EXPECT_THAT(text, HasSubstr("T<=16"));
  EXPECT_THAT(text, HasSubstr("row 2  bf16  bf16_gemm: chosen"));
  EXPECT_THAT(text, HasSubstr("row 6  nvfp4  nvfp4_gemm: weights are bf16"));
}

TEST(Linear, TwoPartsFillTheirColumns) {
  TestExec t(Backend::kCpu);
  std::vector<float> first{1, 0, 0, 1, 1, 1};  // [3, 2]
  std::vector<float> second{2, 0, 0, 2};       // [2, 2]
  RowsWeight w;
  w.num_parts = 2;
  w.parts[0] = dense_weight(first, 3, 2);
  w.parts[1] = dense_weight(second, 2, 2);
  std::vector<float> x{5, 7, -1, 3};
  std::vector<float> y(10, -99.0f);
  const std::array<Op, 2> parts = {Op("a"), Op("b")};

  const Status status = linear_rows_of(t.ex, "ab", parts, make_view(x.data(), {2, 2}, Format::kF32),
                                       w, make_view(y.data(), {2, 5}, Format::kF32));

  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(y, (std::vector<float>{5, 7, 12, 10, 14, -1, 3, 2, -2, 6}));
  EXPECT_STREQ(t.recorder.records()[0].op.name, "a");
  EXPECT_STREQ(t.recorder.records()[1].op.name, "b");
}

TEST(LmHead, GivesTheRowsThatAreAsked) {
  TestExec t(Backend::kCpu);
  std::vector<float> head{1, 0, 0, 1, 1, -1};  // [3, 2]
  std::vector<float> hidden{1, 2, 3, 4, 5, 6};
  std::vector<int32_t> rows{2, 0};
  std::vector<float> logits(6);

  const Status status = lm_head(t.ex, make_view(hidden.data(), {3, 2}, Format::kF32),
                                make_view(rows.data(), {2}, Format::kI32), dense_weight(head, 3, 2),
                                make_view(logits.data(), {2, 3}, Format::kF32));

  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(logits, (std::vector<float>{5, 6, -1, 1, 2, -1}));
}

TEST(AddNorm, AddsABranchOnceAndOnlyWhenOneIsPending) {
  TestExec t(Backend::kCpu);
  Hidden h = make_hidden(t.ex, 1, 2, Format::kF32).value();
  h.residual.as<float>()[0] = 3;
  h.residual.as<float>()[1] = 4;
  h.branch.as<float>()[0] = 1;
  h.branch.as<float>()[1] = -4;
  std::vector<float> ones{1, 1};
  const View w = make_view(ones.data(), {2}, Format::kF32);

  ASSERT_TRUE(add_norm(t.ex, "n", h, w, 0.0f).ok());
  EXPECT_EQ(h.residual.as<float>()[0], 3);
  EXPECT_FLOAT_EQ(h.normed.as<float>()[1], 4 / 3.5355339f);

  h.pending = true;
  ASSERT_TRUE(add_norm(t.ex, "n", h, w, 0.0f).ok());
  EXPECT_EQ(h.residual.as<float>()[0], 4);
  EXPECT_EQ(h.residual.as<float>()[1], 0);
  EXPECT_FALSE(h.pending);
  EXPECT_FLOAT_EQ(h.normed.as<float>()[0], 4 / 2.8284271f);
}

TEST(LinearTable, EightBitActivationsAreQuantisedFirst) {
  struct Expected {
    Format format;
    const char* quantiser;
    const char* kernel;
  };

  for (const Expected& e : {Expected{Format::kFp8Channel, "token_quant_fp8", "fp8_gemm"},
                            Expected{Format::kInt8Channel, "token_quant_int8", "int8_gemm"},
                            Expected{Format::kW4a8Channel, "token_quant_int8", "w4a8_gemm_channel"},
                            Expected{Format::kW4a8Group, "token_quant_int8", "w4a8_gemm_group"}}) {
    // Float32 activations are quantised too: it is what such a checkpoint is made for
    // (numerics.md).
    for (const Format activations : {Format::kBf16, Format::kF32}) {
      TestExec t(Backend::kDry);
      const View x = make_view(nullptr, {5, 256}, activations);
      const View y = make_view(nullptr, {5, 64}, activations);

      const Status status = linear(t.ex, "some_proj", x, shape_only_weight(e.format, 64, 256), y);

      ASSERT_TRUE(status.ok()) << status.message();
      const auto records = t.recorder.records();
      ASSERT_EQ(records.size(), 2u);
      EXPECT_STREQ(records[0].kernel, e.quantiser);
      EXPECT_STREQ(records[0].op.name, "input_quant");
      EXPECT_EQ(records[0].selection_row, -1);
      EXPECT_STREQ(records[1].kernel, e.kernel);
      EXPECT_STREQ(linear_rows()[static_cast<size_t>(records[1].selection_row)].kernel, e.kernel);
    }
  }
}

MoeStrategy strategy_of(const MoeCall& call, const MoeOptions& options) {
  return moe_rows()[static_cast<size_t>(choose_moe(call, options).value())].strategy;
}

// Rows of a table of a GPU that a dry run plans for.
bool takes_no_gate(const Nvfp4GroupGemm::Args& a) {
  return !a.gate.on;
}

bool takes_both(const Nvfp4GroupGemm::Args&) {
  return true;
}

Status not_run(Exec&, const Nvfp4GroupGemm::Args&) {
  return internal_error("a dry run calls nothing");
}

struct GatedCall {
  static constexpr int64_t kRows = 3, kWidth = 64;
  View offsets = make_view(nullptr, {5}, Format::kI32);
  RowsWeight w;

  GatedCall() {
    w.num_parts = 1;
    QuantView& stack = w.parts[0].w;
    stack.layout = WeightLayout::kPairs;
    stack.values = make_view(nullptr, {4, 2 * kWidth, 256}, Format::kNvfp4);
    stack.scales = make_view(nullptr, {4, 2 * kWidth, 16}, Format::kE4m3);
    stack.global = make_view(nullptr, {4}, Format::kF32);
  }

  Result<bool> run(TestExec& t, Format format = Format::kBf16) const {
    return gated_group_linear(t.ex, "gate_up_proj", make_view(nullptr, {kRows, 256}, format), w,
                              {.offsets = offsets}, make_view(nullptr, {kRows, kWidth}, format), 2,
                              10.0f);
  }
};

TEST(GatedGroupLinear, IsOneCallWhereTheVariantOfTheProductTakesTheGate) {
  const KernelSet gpu = KernelSet::for_cuda(90).with<Nvfp4GroupGemm>(
      {{"tiles", sm(90), "", kDeterministic, not_run, MathUnit::kBf16, takes_both}});
  TestExec t(Backend::kDry);
  t.ex.kernels = &gpu;

  const Result<bool> ran = GatedCall().run(t);

  ASSERT_TRUE(ran.ok()) << ran.status().message();
  EXPECT_TRUE(*ran);
  ASSERT_EQ(t.recorder.records().size(), 1u);
  const OpRecord r = t.recorder.records()[0];
  EXPECT_STREQ(r.kernel, "nvfp4_group_gemm");
  EXPECT_STREQ(r.variant, "tiles");
  const Result<bool> in_f32 = GatedCall().run(t, Format::kF32);
  EXPECT_TRUE(in_f32.ok() && !*in_f32) << "the gate is for bf16";
}

TEST(GatedGroupLinear, IsLeftToTwoKernelsWhereAnotherVariantWouldTakeIt) {
  const KernelSet gpu = KernelSet::for_cuda(90).with<Nvfp4GroupGemm>(
      {{"tiles", sm(90), "", kDeterministic, not_run, MathUnit::kBf16, takes_no_gate},
       {"any_layout", sm(90), "", kDeterministic, not_run, MathUnit::kF32, takes_both}});
  TestExec t(Backend::kDry);
  t.ex.kernels = &gpu;

  const Result<bool> ran = GatedCall().run(t);

  ASSERT_TRUE(ran.ok()) << ran.status().message();
  EXPECT_FALSE(*ran);
  EXPECT_TRUE(t.recorder.records().empty());
}

TEST(GatedGroupLinear, IsForOneStackOnAGpu) {
  TestExec cpu(Backend::kCpu);
  TestExec dry(Backend::kDry);
  GatedCall two;
  two.w.num_parts = 2;
  const KernelSet gpu = KernelSet::for_cuda(90).with<Nvfp4GroupGemm>(
      {{"tiles", sm(90), "", kDeterministic, not_run, MathUnit::kBf16, takes_both}});

  const Result<bool> on_cpu = GatedCall().run(cpu);
  const Result<bool> without_kernels = GatedCall().run(dry);
  dry.ex.kernels = &gpu;
  const Result<bool> in_two = two.run(dry);

  EXPECT_TRUE(on_cpu.ok() && !*on_cpu);
  EXPECT_TRUE(without_kernels.ok() && !*without_kernels);
  EXPECT_TRUE(in_two.ok() && !*in_two);
}

TEST(MoeTable, PinDecidesAndGroupedIsTheDefault) {
  EXPECT_EQ(strategy_of({}, {}), MoeStrategy::kGrouped);
  for (MoeStrategy s : {MoeStrategy::kGrouped, MoeStrategy::kSorted, MoeStrategy::kFused}) {
    EXPECT_EQ(strategy_of({}, {.strategy = s}), s);
    EXPECT_EQ(moe_rows()[static_cast<size_t>(moe_row(s).index)].strategy, s);
  }
  EXPECT_THAT(explain_moe({}, {}), HasSubstr("grouped: chosen"));
  EXPECT_THAT(explain_moe({}, {}), HasSubstr("fused: runs only if asked for"));
}

TEST(MoeTable, OneTokenOrTwoReadTheChosenMatricesWhereTheyLie) {
  const MoeCall call{.tokens = 1, .in_rows = true};
  EXPECT_EQ(strategy_of(call, {}), MoeStrategy::kChosen);
  EXPECT_EQ(strategy_of(call, {.strategy = MoeStrategy::kGrouped}), MoeStrategy::kGrouped);
  EXPECT_EQ(strategy_of({.tokens = 3, .in_rows = true}, {}), MoeStrategy::kGrouped);
  EXPECT_EQ(strategy_of({.tokens = 1}, {}), MoeStrategy::kGrouped);
  EXPECT_EQ(strategy_of({.tokens = 1, .in_rows = true, .chosen_fits = false}, {}),
            MoeStrategy::kGrouped);
}

TEST(MoeTable, FormatsDecideWhatCanRun) {
  EXPECT_EQ(strategy_of({.experts = Format::kInt8Channel}, {}), MoeStrategy::kSorted);
  EXPECT_EQ(strategy_of({.experts = Format::kFp8Channel}, {}), MoeStrategy::kSorted);
  EXPECT_EQ(strategy_of({.experts = Format::kW4Fp8}, {}), MoeStrategy::kGrouped);

  const auto refused = [](const MoeCall& call, MoeStrategy strategy) {
    return choose_moe(call, {.strategy = strategy}).status().message();
  };
  EXPECT_THAT(refused({.experts = Format::kInt8Channel}, MoeStrategy::kGrouped),
              HasSubstr("int8_channel: there is no grouped product for scales per channel"));
  EXPECT_THAT(refused({.experts = Format::kW4Fp8}, MoeStrategy::kSorted), HasSubstr("--moe auto"));
  EXPECT_THAT(refused({.rule = RouterRule::kGroupLimitedSoftmax}, MoeStrategy::kFused),
              HasSubstr("group-limited softmax"));
}

}  // namespace
}  // namespace fathom
