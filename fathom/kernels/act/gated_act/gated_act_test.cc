#include "fathom/kernels/act/gated_act/gated_act.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(SiluMul, GatesWithTheFirstHalf) {
  TestExec ex;
  for (const std::string& variant : variants_of<SiluMul>()) {
    const TestTensor x({1, 6}, Format::kF32, {1.0f, -2.0f, 0.0f, 10.0f, 5.0f, 3.0f});
    const TestTensor y({1, 3}, Format::kF32, NAN);

    FATHOM_EXPECT_OK(
        launch<SiluMul>(ex.with("silu_mul", variant), "test", {.x = x.view(), .y = y.view()}));

    expect_near(y.values(), {7.31058579, -1.19202922, 0.0}, 1e-6);
  }
}

TEST(SiluMul, SaturatesWithoutNan) {
  TestExec ex;
  for (const std::string& variant : variants_of<SiluMul>()) {
    const std::vector<float> gates = {100.0f, -100.0f, 1e30f, -1e30f, 88.8f, -88.8f, -103.0f, kInf};
    std::vector<float> both = gates;
    both.resize(2 * gates.size(), 1.0f);
    const TestTensor x({1, 16}, Format::kF32, both);
    const TestTensor y({1, 8}, Format::kF32, NAN);

    FATHOM_EXPECT_OK(
        launch<SiluMul>(ex.with("silu_mul", variant), "test", {.x = x.view(), .y = y.view()}));

    EXPECT_EQ(y[0], 100.0f);
    EXPECT_NEAR(y[1], 0.0, 1e-30);
    EXPECT_EQ(y[2], 1e30f);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_EQ(y[4], 88.8f);
    EXPECT_NEAR(y[5], 0.0, 1e-30);
    EXPECT_NEAR(y[6], 0.0, 1e-30);
    EXPECT_EQ(y[7], kInf);
  }
}

TEST(SiluMul, KeepsNanWhereItIs) {
  TestExec ex;
  for (const std::string& variant : variants_of<SiluMul>()) {
    const TestTensor x({1, 6}, Format::kBf16, {NAN, 1.0f, 1.0f, 1.0f, NAN, 2.0f});
    const TestTensor y({1, 3}, Format::kBf16, 0.0f);

    FATHOM_EXPECT_OK(
        launch<SiluMul>(ex.with("silu_mul", variant), "test", {.x = x.view(), .y = y.view()}));

    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[2], 1.4609375f);
  }
}

TEST(SiluMul, IsAccurateToTwoUnitsInTheLastPlaceOfFloat32) {
  TestExec ex;
  for (const std::string& variant : variants_of<SiluMul>()) {
    constexpr int64_t kCount = 20001;
    TestTensor x({1, 2 * kCount}, Format::kF32, 1.0f);
    for (int64_t i = 0; i < kCount; ++i)
      x.set(i, static_cast<float>(i - 10000) * 0.0087f);
    const TestTensor y({1, kCount}, Format::kF32, NAN);

    FATHOM_EXPECT_OK(
        launch<SiluMul>(ex.with("silu_mul", variant), "test", {.x = x.view(), .y = y.view()}));

    double worst = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const double z = double{x[i]};
      const double exact = z / (1.0 + std::exp(-z));
      if (std::fabs(exact) < 1e-30) continue;
      worst = std::max(worst, std::fabs(double{y[i]} - exact) / std::fabs(exact));
    }
    EXPECT_LT(worst, 3.0 * 0x1p-23) << variant;  // e^-z, the sum, the quotient
  }
}

TEST(SiluMul, RefusesAnOutputThatIsNotHalfAsWide) {
  TestExec ex;
  const TestTensor x({1, 6}, Format::kBf16);
  const TestTensor y({1, 2}, Format::kBf16);

  const Status status = launch<SiluMul>(*ex, "test", {.x = x.view(), .y = y.view()});

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
