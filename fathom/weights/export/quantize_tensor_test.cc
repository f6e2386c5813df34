#include "fathom/weights/export/quantize_tensor.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

namespace fathom {
namespace {

std::vector<float> ramp(int64_t n, int64_t k) {
  std::vector<float> w(static_cast<size_t>(n * k));
  for (size_t i = 0; i < w.size(); ++i)
    w[i] = std::sin(static_cast<float>(i) * 0.7f);
  return w;
}

TEST(QuantizeTensor, NamesNvfp4TensorsAsModelOptDoes) {
  const auto q = quantize_matrix(ramp(4, 32), 4, 32, Format::kNvfp4, "a.up_proj.weight").value();

  ASSERT_EQ(q.tensors.size(), 3u);
  EXPECT_EQ(q.tensors[0].name, "a.up_proj.weight");
  EXPECT_EQ(q.tensors[0].shape, (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(q.tensors[1].name, "a.up_proj.weight_scale");
  EXPECT_EQ(q.tensors[1].shape, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(q.tensors[2].name, "a.up_proj.weight_scale_2");
  EXPECT_TRUE(q.tensors[2].shape.empty());
}

TEST(QuantizeTensor, NamesMxfp8TensorsAsModelOptDoes) {
  const auto w = ramp(4, 64);
  const auto q = quantize_matrix(w, 4, 64, Format::kMxfp8, "a.up_proj.weight").value();

  ASSERT_EQ(q.tensors.size(), 2u);
  EXPECT_EQ(q.tensors[0].name, "a.up_proj.weight");
  EXPECT_EQ(q.tensors[0].dtype, Format::kE4m3);
  EXPECT_EQ(q.tensors[0].shape, (std::vector<int64_t>{4, 64}));
  EXPECT_EQ(q.tensors[1].name, "a.up_proj.weight_scale");
  EXPECT_EQ(q.tensors[1].dtype, Format::kU8);
  EXPECT_EQ(q.tensors[1].shape, (std::vector<int64_t>{4, 2}));
}

TEST(QuantizeTensor, KeepsTheErrorOfEachFormatWithinItsStep) {
  const auto w = ramp(8, 64);
  auto relative = [&](Format f) {
    return quantize_matrix(w, 8, 64, f, "x.weight").value().error.relative();
  };

  EXPECT_EQ(relative(Format::kF32), 0.0);
  EXPECT_LT(relative(Format::kBf16), 1.0 / 256);
  EXPECT_LT(relative(Format::kInt8Channel), 0.01);
  EXPECT_LT(relative(Format::kFp8Block), 0.04);
  EXPECT_LT(relative(Format::kMxfp8), 0.04);
  EXPECT_LT(relative(Format::kNvfp4), 0.13);
  EXPECT_LT(relative(Format::kMxfp4), 0.20);
}

TEST(QuantizeTensor, SharedMaximumSetsTheGlobalScale) {
  const auto q = quantize_matrix(ramp(1, 16), 1, 16, Format::kNvfp4, "x.weight", 2.0f).value();

  float global = 0;
  std::memcpy(&global, q.tensors[2].bytes.data(), 4);
  EXPECT_EQ(global, 2.0f / 2688);
}

TEST(QuantizeTensor, RefusesNonFiniteWeightsByIndex) {
  auto w = ramp(1, 16);
  w[5] = std::numeric_limits<float>::quiet_NaN();

  const auto q = quantize_matrix(w, 1, 16, Format::kNvfp4, "x.weight");

  EXPECT_EQ(q.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(q.status().message().find("tensor x.weight: element 5"), std::string::npos);
}

TEST(QuantizeTensor, RefusesColumnsThatDoNotFillABlock) {
  const auto q = quantize_matrix(ramp(2, 24), 2, 24, Format::kNvfp4, "x.weight");

  EXPECT_EQ(q.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(q.status().message().find("24 columns are no multiple of 16"), std::string::npos);
}

}  // namespace
}  // namespace fathom
