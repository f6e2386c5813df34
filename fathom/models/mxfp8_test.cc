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

/// micro-v3 with all its linear layers in a format.
class QuantisedModel {
 public:
  explicit QuantisedModel(Format format) {
    QuantizeOptions options;
    options.format = format;
    options.scope = QuantScope::kAllLinear;
    const auto report = quantize_checkpoint(Checkpoint::open(kModel).value(), directory(), options);
    FATHOM_CHECK(report.ok(), report.ok() ? "" : report.status().message());
    weight_error_ = report->total.relative();
  }

  std::string directory() const { return dir_.file("out"); }

  double weight_error() const { return weight_error_; }

 private:
  TempDir dir_;
  double weight_error_ = 0;
};

std::vector<int32_t> some_tokens() {
  Rng rng(17);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 45; ++i)
    tokens.push_back(static_cast<int32_t>(rng.next_below(4096)));
  return tokens;
}

std::vector<float> logits_of(const std::string& directory, Format activations) {
  ModelRunner runner(directory, with_activations(activations));
  return runner.prefill(some_tokens()).logits;
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  FATHOM_CHECK(a.size() == b.size());
  double product = 0, squares_a = 0, squares_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    product += double{a[i]} * double{b[i]};
    squares_a += double{a[i]} * double{a[i]};
    squares_b += double{b[i]} * double{b[i]};
  }
  return product / std::sqrt(squares_a * squares_b);  // NaN if a number is not finite
}

TEST(Mxfp8Model, InFloat32EqualsTheOracleOnTheSameWeights) {
  const QuantisedModel model(Format::kMxfp8);
  oracle::ReferenceModel reference(model.directory());
  const std::vector<double> expected = reference.logits(reference.hidden(some_tokens())).v;

  const std::vector<float> found = logits_of(model.directory(), Format::kF32);

  ASSERT_EQ(found.size(), expected.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{found[i]} - expected[i], 2);
    size += expected[i] * expected[i];
  }
  EXPECT_LE(std::sqrt(error / size), 3e-6);
}

/// The weights are random, so that an expert chosen otherwise moves the logits by much: blocks of
/// FP8, whose weights are as far away, show by how much.
TEST(Mxfp8Model, IsAsCloseToBf16AsBlocksOfFp8) {
  const QuantisedModel mxfp8(Format::kMxfp8);
  const QuantisedModel blocks(Format::kFp8Block);
  const std::vector<float> plain = logits_of(kModel, Format::kBf16);

  const double of_mxfp8 = cosine(plain, logits_of(mxfp8.directory(), Format::kBf16));
  const double of_blocks = cosine(plain, logits_of(blocks.directory(), Format::kBf16));

  EXPECT_LT(mxfp8.weight_error(), 1.1 * blocks.weight_error());
  EXPECT_GT(of_mxfp8, 0.95) << of_blocks;
  EXPECT_GT(of_mxfp8, of_blocks - 0.02) << of_blocks;
  EXPECT_LT(of_mxfp8, 1.0);
  RecordProperty("mxfp8", std::to_string(of_mxfp8));
  RecordProperty("fp8_block", std::to_string(of_blocks));
}

}  // namespace
}  // namespace fathom
