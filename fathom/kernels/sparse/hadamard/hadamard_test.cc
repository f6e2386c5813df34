#include "fathom/kernels/sparse/hadamard/hadamard.h"

#include <cmath>
#include <limits>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

std::vector<float> transform(TestExec& exec,
                             std::string_view variant,
                             const std::vector<float>& x,
                             float scale,
                             Format format = Format::kF32) {
  const auto width = static_cast<int64_t>(x.size());
  const TestTensor in({1, width}, format, x);
  const TestTensor out({1, width}, format);
  FATHOM_EXPECT_OK(launch<Hadamard>(exec.with("hadamard", variant), "index_hadamard",
                                    {.x = in.view(), .y = out.view(), .scale = scale}));
  return out.values();
}

TEST(Hadamard, OfFourIsTheMatrixOfSylvester) {
  TestExec exec;
  for (const std::string& variant : variants_of<Hadamard>()) {
    EXPECT_EQ(transform(exec, variant, {1, 2, 4, 8}, 1), (std::vector<float>{15, -5, -9, 3}));
    EXPECT_EQ(transform(exec, variant, {1, 2, 4}, 2), (std::vector<float>{14, 6, -2}));
    EXPECT_EQ(transform(exec, variant, {3}, 0.5f), (std::vector<float>{1.5f}));
  }
}

TEST(Hadamard, TwiceIsTheRowItself) {
  TestExec exec;
  Rng rng(3);
  for (const std::string& variant : variants_of<Hadamard>()) {
    for (int64_t width : {16, 128, 1024}) {
      // Small integers, so that nothing rounds.
      std::vector<float> x(static_cast<size_t>(width));
      for (float& v : x)
        v = static_cast<float>(rng.next_below(100)) - 50.0f;
      const float scale = 1.0f / static_cast<float>(width);

      EXPECT_EQ(transform(exec, variant, transform(exec, variant, x, 1), scale), x) << width;
    }
  }
}

TEST(Hadamard, EveryVariantHasTheBitsOfThePortableOne) {
  TestExec exec;
  Rng rng(5);
  for (Format format : {Format::kF32, Format::kBf16, Format::kF16}) {
    for (size_t width : {1u, 2u, 3u, 15u, 16u, 17u, 128u, 200u, 256u, 257u, 512u, 2048u, 5000u}) {
      std::vector<float> x(width);
      for (float& v : x)
        v = 3.0f * rng.next_normal();
      x[width / 2] = -0.0f;
      const std::vector<float> expected = transform(exec, "portable", x, 0.3f, format);
      for (const std::string& variant : variants_of<Hadamard>()) {
        EXPECT_EQ(transform(exec, variant, x, 0.3f, format), expected) << variant << " " << width;
      }
    }
  }
}

TEST(Hadamard, KeepsSubnormalResultsInEveryVariant) {
  TestExec exec;
  std::vector<float> x(128, 0.0f);
  x[5] = 0x1p-130f;
  for (const std::string& variant : variants_of<Hadamard>()) {
    const std::vector<float> y = transform(exec, variant, x, 1, Format::kBf16);
    for (size_t i = 0; i < y.size(); ++i)
      EXPECT_EQ(std::fabs(y[i]), 0x1p-130f) << variant << " " << i;
  }
}

TEST(Hadamard, OneNanOrInfinityReachesTheWholeRowAndNoOther) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  TestExec exec;
  for (const std::string& variant : variants_of<Hadamard>()) {
    TestTensor x({3, 20}, Format::kF32, 1.0f);
    x.set(7, NAN);
    x.set(20 + 3, kInf);
    const TestTensor y({3, 20}, Format::kF32);
    FATHOM_EXPECT_OK(launch<Hadamard>(exec.with("hadamard", variant), "index_hadamard",
                                      {.x = x.view(), .y = y.view()}));
    for (int64_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(std::isnan(y[i])) << i;
      EXPECT_EQ(y[20 + i], (i & 3) == 1 || (i & 3) == 2 ? -kInf : kInf) << i;
      EXPECT_TRUE(std::isfinite(y[40 + i])) << i;
    }
  }
}

TEST(Hadamard, ResultsBeyondFloat16BecomeInfinite) {
  TestExec exec;
  for (const std::string& variant : variants_of<Hadamard>()) {
    const std::vector<float> y = transform(exec, variant, {60000, 60000}, 1, Format::kF16);
    EXPECT_TRUE(std::isinf(y[0]));
    EXPECT_EQ(y[1], 0.0f);
  }
}

TEST(Hadamard, OnAGpuRowsOfWholeVectorsStayInRegisters) {
  const auto variant_for = [](int64_t width, int64_t stride) {
    const TestTensor x({2, stride}, Format::kBf16);
    const View rows = slice_cols(x.view(), 0, width);
    return gpu_variant_for<Hadamard>({.x = rows, .y = rows});
  };
  if (variant_for(128, 128).empty()) GTEST_SKIP() << "this build knows no kernels of a GPU";

  EXPECT_EQ(variant_for(128, 128), "vectors");
  EXPECT_EQ(variant_for(1024, 1024), "vectors");
  EXPECT_EQ(variant_for(128, 132), "rows") << "the second row is not aligned";
  EXPECT_EQ(variant_for(100, 104), "rows");
  EXPECT_EQ(variant_for(2048, 2048), "rows");
}

TEST(Hadamard, RefusesTwoFormats) {
  TestExec exec;
  const TestTensor x({1, 4}, Format::kF32);
  const TestTensor y({1, 4}, Format::kBf16);

  const Status status = launch<Hadamard>(*exec, "index_hadamard", {.x = x.view(), .y = y.view()});

  EXPECT_NE(status.message().find("x is f32 but y is bf16"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace fathom
