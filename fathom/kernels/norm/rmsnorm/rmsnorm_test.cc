#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr Format kBf16 = Format::kBf16;
constexpr Format kF32 = Format::kF32;
const std::vector<float> kX = {1.0f, -2.0f, 3.0f, 0.5f};
const std::vector<float> kW = {1.0f, 0.5f, 2.0f, 1.5f};

TEST(RmsNorm, GivesTheWorkedExampleInFloat32) {
  TestExec ex;
  for (const std::string& variant : variants_of<RmsNorm>()) {
    const TestTensor x({1, 4}, kF32, kX);
    const TestTensor w({4}, kF32, kW);
    const TestTensor y({1, 4}, kF32, NAN);

    FATHOM_EXPECT_OK(launch<RmsNorm>(ex.with("rmsnorm", variant), "test",
                                     {.x = x.view(), .w = w.view(), .y = y.view()}));

    expect_near(y.values(), {0.52981287, -0.52981287, 3.17887721, 0.39735965}, 1e-6);
  }
}

TEST(RmsNorm, RoundsOnceAfterTheProductWithTheWeight) {
  TestExec ex;
  for (const std::string& variant : variants_of<RmsNorm>()) {
    const TestTensor x({1, 4}, kBf16, kX);
    const TestTensor w({4}, kBf16, kW);
    const TestTensor y({1, 4}, kBf16, NAN);

    FATHOM_EXPECT_OK(launch<RmsNorm>(ex.with("rmsnorm", variant), "test",
                                     {.x = x.view(), .w = w.view(), .y = y.view()}));

    // Rounding x * r before the product would give 0.3984375 at the end.
    EXPECT_EQ(y.values(), (std::vector<float>{0.53125f, -0.53125f, 3.171875f, 0.396484375f}));
  }
}

TEST(RmsNorm, TakesEpsInsideTheRoot) {
  TestExec ex;
  for (const std::string& variant : variants_of<RmsNorm>()) {
    const TestTensor x({2, 3}, kF32, {1e-3f, 1e-3f, 1e-3f, 0.0f, 0.0f, 0.0f});
    const TestTensor w({3}, kF32, 1.0f);
    const TestTensor y({2, 3}, kF32, NAN);

    FATHOM_EXPECT_OK(launch<RmsNorm>(ex.with("rmsnorm", variant), "test",
                                     {.x = x.view(), .w = w.view(), .y = y.view(), .eps = 1e-6f}));

    const double r = std::sqrt(0.5);
    expect_near(y.values(), {r, r, r, 0, 0, 0}, 1e-6);
  }
}

TEST(RmsNorm, WorksInPlaceOnASliceOfAWiderProjection) {
  TestExec ex;
  for (const std::string& variant : variants_of<RmsNorm>()) {
    const TestTensor u({2, 6}, kF32, {9, 1, -2, 3, 0.5f, 8, 7, 2, -4, 6, 1, 6});
    const TestTensor w({4}, kF32, kW);
    const View slice = slice_cols(u.view(), 1, 4);

    FATHOM_EXPECT_OK(launch<RmsNorm>(ex.with("rmsnorm", variant), "test",
                                     {.x = slice, .w = w.view(), .y = slice, .eps = 0.0f}));

    const double a = 0.5298129, c = 3.1788773, d = 0.3973597;
    expect_near(u.values(), {9, a, -a, c, d, 8, 7, a, -a, c, d, 6}, 1e-6);
  }
}

TEST(RmsNorm, KeepsNanAndInfinityInTheirRows) {
  TestExec ex;
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::string& variant : variants_of<RmsNorm>()) {
    const TestTensor x({3, 2}, kBf16, {1, NAN, 1, 1, inf, 1});
    const TestTensor w({2}, kBf16, 1.0f);
    const TestTensor y({3, 2}, kBf16, 5.0f);

    FATHOM_EXPECT_OK(launch<RmsNorm>(ex.with("rmsnorm", variant), "test",
                                     {.x = x.view(), .w = w.view(), .y = y.view()}));

    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
    EXPECT_EQ(y[2], 1.0f);
    EXPECT_EQ(y[3], 1.0f);
    EXPECT_TRUE(std::isnan(y[4]));  // inf * 0
    EXPECT_EQ(y[5], 0.0f);
  }
}

TEST(RmsNorm, VariantsGiveTheSameBits) {
  TestExec ex;
  Rng rng(7, 1);
  const auto expect_same_bits = [&](int64_t D, Format format) {
    TestTensor x({3, D}, format);
    TestTensor h({3, D}, format);
    TestTensor w({D}, kF32);
    x.randomise(rng);
    h.randomise(rng, 3.0f);
    w.randomise(rng);
    std::vector<std::vector<std::byte>> normed;
    std::vector<std::vector<std::byte>> added;
    for (const std::string& variant : variants_of<RmsNorm>()) {
      const TestTensor y({3, D}, format);
      FATHOM_EXPECT_OK(launch<RmsNorm>(ex.with("rmsnorm", variant), "test",
                                       {.x = x.view(), .w = w.view(), .y = y.view()}));
      normed.push_back(y.bytes());
    }
    for (const std::string& variant : variants_of<AddRmsNorm>()) {
      const TestTensor sum({3, D}, format, h.values());
      const TestTensor y({3, D}, format);
      FATHOM_EXPECT_OK(
          launch<AddRmsNorm>(ex.with("add_rmsnorm", variant), "test",
                             {.x = x.view(), .h = sum.view(), .w = w.view(), .y = y.view()}));
      added.push_back(y.bytes());
      added.back().insert(added.back().end(), sum.bytes().begin(), sum.bytes().end());
    }
    for (const auto& bytes : normed)
      EXPECT_EQ(bytes, normed[0]) << "D=" << D;
    for (const auto& bytes : added)
      EXPECT_EQ(bytes, added[0]) << "D=" << D;
  };
  for (const Format format : {kBf16, Format::kF16, kF32}) {
    for (int64_t D : {1, 2, 15, 16, 17, 63, 64, 65, 129, 1000, 7168})
      expect_same_bits(D, format);
  }
}

TEST(AddRmsNorm, NormalisesTheUnroundedSum) {
  TestExec ex;
  for (const std::string& variant : variants_of<AddRmsNorm>()) {
    // 1 + 2^-8 lies between two bf16 and rounds down to 1; times 1.002 the unrounded sum rounds up.
    const TestTensor x({1, 2}, kBf16, {0x1p-8f, 0.0f});
    const TestTensor h({1, 2}, kBf16, {1.0f, 0.99609375f});
    const TestTensor w({2}, kF32, {1.002f, 1.0f});
    const TestTensor y({1, 2}, kBf16, NAN);

    FATHOM_EXPECT_OK(
        launch<AddRmsNorm>(ex.with("add_rmsnorm", variant), "test",
                           {.x = x.view(), .h = h.view(), .w = w.view(), .y = y.view()}));

    EXPECT_EQ(h.values(), (std::vector<float>{1.0f, 0.99609375f}));
    EXPECT_EQ(y[0], 1.0078125f) << "1 if the rounded sum was normalised";
  }
}

TEST(AddRmsNorm, MayWriteOverItsInput) {
  TestExec ex;
  for (const std::string& variant : variants_of<AddRmsNorm>()) {
    const TestTensor x({1, 4}, kF32, {0.25f, -1.0f, 1.0f, 0.25f});
    const TestTensor h({1, 4}, kF32, {0.75f, -1.0f, 2.0f, 0.25f});
    const TestTensor w({4}, kF32, kW);

    FATHOM_EXPECT_OK(
        launch<AddRmsNorm>(ex.with("add_rmsnorm", variant), "test",
                           {.x = x.view(), .h = h.view(), .w = w.view(), .y = x.view()}));

    EXPECT_EQ(h.values(), kX);
    expect_near(x.values(), {0.52981287, -0.52981287, 3.17887721, 0.39735965}, 1e-6);
  }
}

TEST(AddRmsNorm, RefusesMixedFormats) {
  TestExec ex;
  const TestTensor x({1, 4}, kBf16);
  const TestTensor h({1, 4}, kF32);
  const TestTensor w({4}, kF32);

  const Status status =
      launch<AddRmsNorm>(*ex, "test", {.x = x.view(), .h = h.view(), .w = w.view(), .y = x.view()});

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("x is bf16 but h is f32"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace fathom
