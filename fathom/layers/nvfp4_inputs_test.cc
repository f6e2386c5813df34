// Products that quantise what they read to NVFP4, against float64 sums of the values that the codes
// of weights and activations stand for.
#include <cmath>
#include <gtest/gtest.h>

#include "fathom/kernels/core/kernel_set/kernel_set.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/layers/linear.h"
#include "fathom/weights/loader.h"
#include "tests/support/relayout.h"
#include "tests/support/test_checkpoint.h"

namespace fathom {
namespace {

constexpr int64_t kE = 3;
constexpr int64_t kN = 48;
constexpr int64_t kK = 96;
constexpr int64_t kRows = 7;

float input_scale(int64_t e) {
  return 0.002f * static_cast<float>(e + 1);
}

class QuantisedInput : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > best_isa()) GTEST_SKIP() << "this machine has no " << isa_name(GetParam());
    for (int64_t e = 0; e < kE; ++e) {
      const std::string name = str_cat("e.", e, ".weight");
      files_.matrix(name, kN, kK, Format::kNvfp4, 0.1f);
      files_.scalar(str_cat("e.", e, ".input_scale"), input_scale(e));
      const QuantizedMatrix stored{.tensors = {files_.tensor(name), files_.tensor(name + "_scale"),
                                               files_.tensor(name + "_scale_2")},
                                   .error = {}};
      w_.push_back(values_of(stored, Format::kNvfp4, kN, kK));
    }
    const Checkpoint checkpoint = files_.open();
    WeightPlan plan(symbols({{"E", kE}, {"N", kN}, {"K", kK}}), tensors_of(checkpoint));
    plan.set_nvfp4_inputs(Nvfp4Inputs::kQuantised);
    ASSERT_TRUE(plan.matrix("e.1.weight", "N,K", WeightRole::kMlp, &one_).ok());
    ASSERT_TRUE(plan.stack({{"e.{}.weight", "N,K"}}, kE, "E,N,K", WeightRole::kExpert, &all_).ok());
    store_ = load_weights(plan, checkpoint, pool_).value();
    Rng rng(3);
    for (float& v : x_)
      v = rng.next_normal();
    ex_.kernels = &kernels_;
    ex_.pool = &pool_;
    ex_.activations = &activations_;
    ex_.scratch = &scratch_;
    ex_.recorder = &recorder_;
  }

  View x() { return make_view(x_.data(), {kRows, kK}, Format::kF32); }

  View y() { return make_view(y_.data(), {kRows, kN}, Format::kF32); }

  // Row t by matrix e: quantised by the recipe of formats/block, then summed.
  void expect_row(int64_t t, int64_t e) {
    std::vector<uint8_t> codes(kK / 2);
    std::vector<E4m3> scales(kK / 16);
    std::vector<float> rounded(kK);
    nvfp4_quantize_activations(x_.data() + t * kK, 1, kK, 1.0f / input_scale(e), codes.data(),
                               scales.data());
    nvfp4_dequantize(codes.data(), scales.data(), 1.0f, 1, kK, rounded.data());
    for (int64_t n = 0; n < kN; ++n) {
      double sum = 0;
      double size = 0;
      for (int64_t k = 0; k < kK; ++k) {
        const double term = double{rounded[static_cast<size_t>(k)]} * double{input_scale(e)} *
                            double{w_[static_cast<size_t>(e)][static_cast<size_t>(n * kK + k)]};
        sum += term;
        size += std::abs(term);
      }
      // A float32 sum of 96 terms, and two factors: each rounds by 2^-24 at most.
      EXPECT_NEAR(y_[static_cast<size_t>(t * kN + n)], sum, 100 * 0x1p-24 * size) << t << " " << n;
    }
  }

  std::string kernels_run() const {
    std::string out;
    for (const OpRecord& r : recorder_.records())
      str_append(out, str_cat(r.op.name, " ", r.kernel, "\n"));
    return out;
  }

  TestCheckpoint files_;
  std::vector<std::vector<float>> w_;
  LinearWeight one_, all_;
  ThreadPool pool_{1, PinThreads::kNo};
  KernelSet kernels_ = KernelSet::for_cpu(GetParam() > best_isa() ? best_isa() : GetParam());
  WeightStore store_;
  Arena activations_{Buffer::allocate(DeviceKind::kCpu, 1 << 20, "test").value()};
  Arena scratch_{Buffer::allocate(DeviceKind::kCpu, 1 << 20, "test").value()};
  Recorder recorder_{RecordLevel::kShapes, 8};
  Exec ex_;
  std::vector<float> x_ = std::vector<float>(kRows * kK);
  std::vector<float> y_ = std::vector<float>(kRows * kN, NAN);
};

TEST_P(QuantisedInput, OfALinearIsWhatItsCodesStandFor) {
  const Status status = linear(ex_, "o_proj", x(), one_, y());

  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(kernels_run(), "input_quant nvfp4_quant\no_proj nvfp4_gemm\n");
  for (int64_t t = 0; t < kRows; ++t)
    expect_row(t, 1);
}

TEST_P(QuantisedInput, OfExpertsHasTheScaleOfEach) {
  int32_t offsets[] = {0, 2, 2, kRows};  // the second has no rows
  int32_t scale_offsets[] = {0, 128, 128, 256};

  const Status status =
      group_linear(ex_, "down_proj", x(), all_,
                   {.offsets = make_view(offsets, {kE + 1}, Format::kI32),
                    .scale_offsets = make_view(scale_offsets, {kE + 1}, Format::kI32)},
                   y(), 1);

  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(kernels_run(), "input_quant nvfp4_quant_experts\ndown_proj nvfp4_group_gemm\n");
  for (int64_t t = 0; t < kRows; ++t)
    expect_row(t, t < 2 ? 0 : 2);
}

INSTANTIATE_TEST_SUITE_P(Isas,
                         QuantisedInput,
                         testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
                         [](const auto& p) { return std::string(isa_name(p.param)); });

// What lies in a product's way is named, where it would have taken exact activations.
TEST(QuantisedInputTable, DoesNotFallBackToExactActivations) {
  const KernelSet without =
      KernelSet::for_cpu(Isa::kPortable)
          .with<Nvfp4Gemm>(
              {{"bf16_alone", Isa::kPortable, "", 0u, nullptr, MathUnit::kF32,
                [](const Nvfp4Gemm::Args& a) { return a.x.format != Format::kNvfp4; }}});
  Arena activations;
  Arena scratch;
  Exec ex;
  ex.backend = Backend::kDry;
  ex.kernels = &without;
  ex.activations = &activations;
  ex.scratch = &scratch;
  const View x = make_view(nullptr, {1, kK}, Format::kBf16);
  const View y = make_view(nullptr, {1, kN}, Format::kBf16);
  const auto run = [&](Nvfp4Inputs inputs) {
    return linear(ex, "o_proj", x, shape_only_weight(Format::kNvfp4, kN, kK, inputs), y);
  };

  EXPECT_TRUE(run(Nvfp4Inputs::kExact).ok());
  const Status refused = run(Nvfp4Inputs::kQuantised);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("o_proj: no linear kernel takes weights [48, 96] nvfp4: "),
            std::string::npos)
      << refused.message();
}

}  // namespace
}  // namespace fathom
