#include "fathom/kernels/act/gated_act/gated_act.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// What the tests need to know of a kernel: its function in double, and how many units in the last
/// place of float32 it may be off where the result is not tiny.
template <class K>
struct Truth;

template <>
struct Truth<SiluMul> {
  static constexpr double kUlps = 3;  // e^-z, the sum, the quotient

  static double of(double z) { return z / (1.0 + std::exp(-z)); }
};

template <>
struct Truth<GeluMul> {
  // erfc magnifies the rounding of z / sqrt 2 by z^2; the sweep ends at |z| = 5 for that reason.
  static constexpr double kUlps = 40;

  static double of(double z) { return z * 0.5 * std::erfc(-z / std::sqrt(2.0)); }
};

template <>
struct Truth<GeluTanhMul> {
  static constexpr double kUlps = 40;  // e^-2u magnifies the rounding of u by 2u

  static double of(double z) {
    const double u = std::sqrt(2.0 / std::acos(-1.0)) * (z + 0.044715 * z * z * z);
    return z * 0.5 * (1.0 + std::tanh(u));
  }
};

template <class K>
class GatedAct : public testing::Test {
 protected:
  /// act(gate) * up of one row.
  std::vector<float> run(const std::string& variant,
                         Format format,
                         const std::vector<float>& gates,
                         float up = 1.0f) {
    const auto count = static_cast<int64_t>(gates.size());
    std::vector<float> both = gates;
    both.resize(2 * gates.size(), up);
    const TestTensor x({1, 2 * count}, format, both);
    const TestTensor y({1, count}, format, NAN);
    FATHOM_EXPECT_OK(
        launch<K>(ex_.with(K::kInfo.name, variant), "test", {.x = x.view(), .y = y.view()}));
    return y.values();
  }

  TestExec ex_;
};

using Contracts = testing::Types<SiluMul, GeluMul, GeluTanhMul>;
TYPED_TEST_SUITE(GatedAct, Contracts);

TYPED_TEST(GatedAct, GatesWithTheFirstHalf) {
  for (const std::string& variant : variants_of<TypeParam>()) {
    const TestTensor x({1, 6}, Format::kF32, {1.0f, -2.0f, 0.0f, 10.0f, 5.0f, 3.0f});
    const TestTensor y({1, 3}, Format::kF32, NAN);

    FATHOM_EXPECT_OK(launch<TypeParam>(this->ex_.with(TypeParam::kInfo.name, variant), "test",
                                       {.x = x.view(), .y = y.view()}));

    using T = Truth<TypeParam>;
    expect_near(y.values(), {T::of(1.0) * 10.0, T::of(-2.0) * 5.0, 0.0}, 2e-6);
  }
}

TYPED_TEST(GatedAct, SaturatesWithoutNan) {
  for (const std::string& variant : variants_of<TypeParam>()) {
    const std::vector<float> y =
        this->run(variant, Format::kF32, {100.0f, -110.0f, 1e30f, -1e30f, 88.8f, -105.0f, kInf});

    EXPECT_EQ(y[0], 100.0f);
    EXPECT_NEAR(y[1], 0.0, 1e-30);
    EXPECT_EQ(y[2], 1e30f);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_EQ(y[4], 88.8f);
    EXPECT_NEAR(y[5], 0.0, 1e-30);
    EXPECT_EQ(y[6], kInf);
  }
}

TYPED_TEST(GatedAct, KeepsNanWhereItIsAndMakesOneOfMinusInfinity) {
  for (const std::string& variant : variants_of<TypeParam>()) {
    for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
      const TestTensor x({1, 8}, format, {NAN, 1.0f, 1.0f, -kInf, 1.0f, NAN, 0.0f, 1.0f});
      const TestTensor y({1, 4}, format, 7.0f);

      FATHOM_EXPECT_OK(launch<TypeParam>(this->ex_.with(TypeParam::kInfo.name, variant), "test",
                                         {.x = x.view(), .y = y.view()}));

      EXPECT_TRUE(std::isnan(y[0]));
      EXPECT_TRUE(std::isnan(y[1]));
      EXPECT_EQ(y[2], 0.0f);
      EXPECT_TRUE(std::isnan(y[3]));
    }
  }
}

TYPED_TEST(GatedAct, IsAccurateInFloat32) {
  using T = Truth<TypeParam>;
  std::vector<float> gates;
  for (int i = -5000; i <= 20000; ++i)
    gates.push_back(static_cast<float>(i) * 0.001f);
  for (const std::string& variant : variants_of<TypeParam>()) {
    const std::vector<float> y = this->run(variant, Format::kF32, gates);

    double worst = 0;
    for (size_t i = 0; i < gates.size(); ++i) {
      const double exact = T::of(double{gates[i]});
      if (exact == 0) continue;
      worst = std::max(worst, std::fabs(double{y[i]} - exact) / std::fabs(exact));
    }
    EXPECT_LT(worst, T::kUlps * 0x1p-23) << variant;
  }
}

TYPED_TEST(GatedAct, RoundsOnceToHalfPrecision) {
  std::vector<float> gates;
  for (uint32_t code = 0; code < 0x7C00; code += 3) {  // finite f16 codes of both signs
    gates.push_back(to_float(F16{static_cast<uint16_t>(code)}));
    gates.push_back(to_float(F16{static_cast<uint16_t>(code | 0x8000u)}));
  }
  for (const std::string& variant : variants_of<TypeParam>()) {
    const std::vector<float> y = this->run(variant, Format::kF16, gates);

    for (size_t i = 0; i < gates.size(); ++i) {
      const double exact = Truth<TypeParam>::of(double{gates[i]});
      // Half a step of f16, and 2^-17 for what comes before the rounding.
      const double allowed = std::max(std::fabs(exact) * 0x1.04p-11, 0x1.04p-25);
      ASSERT_NEAR(double{y[i]}, exact, allowed) << variant << ", gate " << gates[i];
    }
  }
}

TYPED_TEST(GatedAct, TakesAnyLeadingShapeAsRows) {
  for (const std::string& variant : variants_of<TypeParam>()) {
    TestTensor x({2, 3, 10}, Format::kBf16);
    Rng rng(5, 1);
    x.randomise(rng, 3.0f);
    const TestTensor whole({6, 5}, Format::kBf16, NAN);
    const TestTensor apart({2, 3, 5}, Format::kBf16, NAN);
    Exec& ex = this->ex_.with(TypeParam::kInfo.name, variant);

    FATHOM_EXPECT_OK(
        launch<TypeParam>(ex, "test", {.x = reshape(x.view(), {6, 10}), .y = whole.view()}));
    for (int64_t b = 0; b < 2; ++b) {
      const View xb = reshape(slice_rows(x.view(), b, 1), {3, 10});
      const View yb = reshape(slice_rows(apart.view(), b, 1), {3, 5});
      FATHOM_EXPECT_OK(launch<TypeParam>(ex, "test", {.x = xb, .y = yb}));
    }

    EXPECT_EQ(whole.bytes(), apart.bytes());
  }
}

TYPED_TEST(GatedAct, RefusesAnOutputThatIsNotHalfAsWide) {
  const TestTensor x({1, 6}, Format::kBf16);
  const TestTensor y({1, 2}, Format::kBf16);

  const Status status = launch<TypeParam>(*this->ex_, "test", {.x = x.view(), .y = y.view()});

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

TEST(SiluMul, LimitClampsTheGateFromAboveAndTheUpHalfFromBothSides) {
  TestExec exec;
  for (const std::string& variant : variants_of<SiluMul>()) {
    const TestTensor x({1, 12}, Format::kF32, {50, -50, 1, 1, 10, NAN, 1, 1, 50, -50, 2, NAN});
    const TestTensor y({1, 6}, Format::kF32);

    FATHOM_EXPECT_OK(launch<SiluMul>(exec.with("silu_mul", variant), "test",
                                     {.x = x.view(), .y = y.view(), .limit = 10}));

    using T = Truth<SiluMul>;
    EXPECT_NEAR(y[0], T::of(10), 1e-5);
    EXPECT_NEAR(y[1], T::of(-50), 1e-25) << "not clamped from below";
    EXPECT_NEAR(y[2], T::of(1) * 10, 1e-5);
    EXPECT_NEAR(y[3], T::of(1) * -10, 1e-5);
    EXPECT_NEAR(y[4], T::of(10) * 2, 1e-5);
    EXPECT_TRUE(std::isnan(y[5]));
  }
}

TEST(SiluMul, NanPassesALimitInEitherHalf) {
  TestExec exec;
  for (const std::string& variant : variants_of<SiluMul>()) {
    const TestTensor x({1, 4}, Format::kBf16, {NAN, 1, 1, NAN});
    const TestTensor y({1, 2}, Format::kBf16);

    FATHOM_EXPECT_OK(launch<SiluMul>(exec.with("silu_mul", variant), "test",
                                     {.x = x.view(), .y = y.view(), .limit = 10}));

    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_TRUE(std::isnan(y[1]));
  }
}

TEST(SiluMul, OnAGpuALimitIsTakenInVectors) {
  const TestTensor x({1, 16}, Format::kBf16);
  const TestTensor y({1, 8}, Format::kBf16);
  const auto variant_for = [&](float limit) {
    return gpu_variant_for<SiluMul>({.x = x.view(), .y = y.view(), .limit = limit});
  };
  if (variant_for(0).empty()) GTEST_SKIP() << "this build knows no kernels of a GPU";

  EXPECT_EQ(variant_for(10), "vectors");
}

TEST(SiluMul, RefusesANegativeLimitAndGeluAnyLimit) {
  TestExec exec;
  const TestTensor x({1, 4}, Format::kBf16);
  const TestTensor y({1, 2}, Format::kBf16);
  const SiluMul::Args negative{.x = x.view(), .y = y.view(), .limit = -1};
  const SiluMul::Args ten{.x = x.view(), .y = y.view(), .limit = 10};

  EXPECT_NE(launch<SiluMul>(*exec, "test", negative).message().find("limit is -1, expected 0"),
            std::string::npos);
  EXPECT_NE(launch<GeluMul>(*exec, "test", ten).message().find("silu_mul alone takes one"),
            std::string::npos);
  EXPECT_NE(launch<GeluTanhMul>(*exec, "test", ten).message().find("silu_mul alone takes one"),
            std::string::npos);
}

TYPED_TEST(GatedAct, RefusesAnOutputOfAnotherFormat) {
  const TestTensor x({1, 6}, Format::kBf16);
  const TestTensor y({1, 3}, Format::kF16);

  const Status status = launch<TypeParam>(*this->ex_, "test", {.x = x.view(), .y = y.view()});

  EXPECT_NE(status.message().find("x is bf16 but y is f16"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace fathom
