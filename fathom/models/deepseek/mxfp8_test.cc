// A model quantised to MXFP8, written, loaded and run.
#include <cmath>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/weights/export/quantizer.h"
#include "tests/support/model_runner.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

const std::string kModel = FATHOM_SOURCE_DIR "/tests/golden/micro-v3";

ModelOptions with_activations(Format format) {
  ModelOptions o;
  o.activations = format;
  return o;
}

class Mxfp8Model : public testing::Test {
 protected:
  Mxfp8Model() {
    QuantizeOptions options;
    options.format = Format::kMxfp8;
    options.scope = QuantScope::kAllLinear;
    const auto report =
        quantize_checkpoint(Checkpoint::open(kModel).value(), dir_.file("out"), options);
    FATHOM_CHECK(report.ok(), report.ok() ? "" : report.status().message());
    error_ = report->total.relative();
    Rng rng(17);
    for (int i = 0; i < 45; ++i)
      tokens_.push_back(static_cast<int32_t>(rng.next_below(4096)));
  }

  TempDir dir_;
  double error_ = 0;
  std::vector<int32_t> tokens_;
};

TEST_F(Mxfp8Model, InFloat32EqualsTheOracleOnTheSameWeights) {
  oracle::ReferenceModel reference(dir_.file("out"));
  ModelRunner runner(dir_.file("out"), with_activations(Format::kF32));

  const StepResult result = runner.prefill(tokens_);

  const std::vector<double> expected = reference.logits(reference.hidden(tokens_)).v;
  ASSERT_EQ(result.logits.size(), expected.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{result.logits[i]} - expected[i], 2);
    size += expected[i] * expected[i];
  }
  EXPECT_LE(std::sqrt(error / size), 3e-6);
}

TEST_F(Mxfp8Model, LogitsAreCloseToThoseOfBf16) {
  EXPECT_GT(error_, 0.01);
  EXPECT_LT(error_, 0.04);
  ModelRunner plain(kModel, with_activations(Format::kBf16));
  ModelRunner quantised(dir_.file("out"), with_activations(Format::kBf16));

  const std::vector<float> a = plain.prefill(tokens_).logits;
  const std::vector<float> b = quantised.prefill(tokens_).logits;

  ASSERT_EQ(a.size(), b.size());
  double product = 0, squares_a = 0, squares_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(std::isfinite(b[i])) << i;
    product += double{a[i]} * double{b[i]};
    squares_a += double{a[i]} * double{a[i]};
    squares_b += double{b[i]} * double{b[i]};
  }
  const double cosine = product / std::sqrt(squares_a * squares_b);
  RecordProperty("cosine", std::to_string(cosine));
  EXPECT_GT(cosine, 0.99);
  EXPECT_LT(cosine, 1.0);
}

}  // namespace
}  // namespace fathom
