#include "fathom/kernels/rope/rope/rope.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr Format kF32 = Format::kF32;

/// A table of one row with these angles.
TestTensor table_of(const std::vector<double>& angles) {
  const auto pairs = static_cast<int64_t>(angles.size());
  std::vector<float> row;
  for (double angle : angles)
    row.push_back(static_cast<float>(std::cos(angle)));
  for (double angle : angles)
    row.push_back(static_cast<float>(std::sin(angle)));
  return TestTensor({1, 2 * pairs}, kF32, row);
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += double{a[i]} * double{b[i]};
  return sum;
}

/// Rotates the one head `x` at angles .3 and 1.1.
std::vector<float> rotate(TestExec& ex,
                          const std::string& variant,
                          const std::vector<float>& x,
                          RopeStyle style) {
  const TestTensor q({1, 1, 4}, kF32, x);
  const TestTensor positions({1}, Format::kI32, 0.0f);
  const TestTensor table = table_of({0.3, 1.1});
  FATHOM_EXPECT_OK(launch<RopeInplace>(ex.with("rope_inplace", variant), "test",
                                       {.q = q.view(),
                                        .k = {},
                                        .positions = positions.view(),
                                        .table = table.view(),
                                        .style = style}));
  return q.values();
}

const std::vector<float> kX = {1, 2, 3, 4};
const std::vector<float> kY = {-1, 0.5f, 2, -0.5f};

TEST(RopeInplace, RotatesAdjacentPairs) {
  TestExec ex;
  for (const std::string& variant : variants_of<RopeInplace>()) {
    const std::vector<float> y = rotate(ex, variant, kX, RopeStyle::kInterleaved);

    expect_near(y, {0.364296, 2.206193, -2.204041, 4.488007}, 1e-6);
    EXPECT_NEAR(dot(y, kY), -5.913285, 1e-5);
  }
}

TEST(RopeInplace, HalfSplitAfterSortingEvensFromOddsIsThePermutedRotation) {
  TestExec ex;
  for (const std::string& variant : variants_of<RopeInplace>()) {
    const std::vector<float> sorted = {1, 3, 2, 4};

    const std::vector<float> y = rotate(ex, variant, sorted, RopeStyle::kHalfSplit);

    expect_near(y, {0.364296, -2.204041, 2.206193, 4.488007}, 1e-6);
    EXPECT_NEAR(dot(y, {-1, 2, 0.5f, -0.5f}), -5.913285, 1e-5);
  }
}

TEST(RopeInplace, HalfSplitWithoutSortingGivesOtherScores) {
  TestExec ex;
  for (const std::string& variant : variants_of<RopeInplace>()) {
    const std::vector<float> y = rotate(ex, variant, kX, RopeStyle::kHalfSplit);

    expect_near(y, {0.068776, -2.657637, 3.161530, 3.596799}, 1e-6);
    EXPECT_NEAR(dot(y, kY), 3.127065, 1e-5);
  }
}

TEST(RopeInplace, RotatesByTheTableRowOfThePosition) {
  // Pairs 0 and 20 of YaRN's 32, at positions 1 and 1000.
  constexpr float kOmega0 = 1.0f;
  constexpr float kOmega20 = 7.90569415e-4f;
  TestTensor table({1001, 64}, kF32);
  for (int64_t p = 0; p < 1001; ++p) {
    for (const auto& [i, omega] : {std::pair<int64_t, float>{0, kOmega0}, {20, kOmega20}}) {
      const float angle = static_cast<float>(p) * omega;
      table.set(p * 64 + i, std::cos(angle));
      table.set(p * 64 + 32 + i, std::sin(angle));
    }
  }
  TestExec ex;
  for (const std::string& variant : variants_of<RopeInplace>()) {
    TestTensor k({2, 64}, kF32);
    const TestTensor q({2, 0, 64}, kF32);
    const TestTensor positions({2}, Format::kI32, {1, 1000});
    for (int64_t t = 0; t < 2; ++t) {
      k.set(t * 64, 1);
      k.set(t * 64 + 1, 2);
      k.set(t * 64 + 40, 3);
      k.set(t * 64 + 41, 4);
    }

    FATHOM_EXPECT_OK(launch<RopeInplace>(
        ex.with("rope_inplace", variant), "test",
        {.q = q.view(), .k = k.view(), .positions = positions.view(), .table = table.view()}));

    expect_near({k[0], k[1], k[40], k[41]}, {-1.142640, 1.922076, 2.996837, 4.002370}, 1e-6);
    expect_near({k[64], k[65], k[104], k[105]}, {-1.091380, 1.951638, -0.732694, 4.946025}, 1e-5);
  }
}

TEST(RopeInplace, TouchesOnlyTheSliceOfTheHead) {
  TestExec ex;
  for (const std::string& variant : variants_of<RopeInplace>()) {
    TestTensor q({2, 3, 12}, Format::kBf16, 7.0f);
    const TestTensor positions({2}, Format::kI32, 0.0f);
    const TestTensor table = table_of({0.3, 1.1});

    FATHOM_EXPECT_OK(launch<RopeInplace>(ex.with("rope_inplace", variant), "test",
                                         {.q = slice_cols(q.view(), 8, 4),
                                          .k = {},
                                          .positions = positions.view(),
                                          .table = table.view()}));

    for (int64_t i = 0; i < q.size(); ++i)
      EXPECT_EQ(q[i] == 7.0f, i % 12 < 8) << i;
  }
}

TEST(RopeInplace, VariantsGiveTheSameBits) {
  TestExec ex;
  Rng rng(11, 1);
  for (const Format format : {Format::kBf16, kF32}) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
      for (int64_t R : {2, 6, 30, 32, 34, 64, 66}) {
        TestTensor x({5, 3, R}, format);
        TestTensor table({5, R}, kF32);
        x.randomise(rng);
        table.randomise(rng);
        const TestTensor positions({5}, Format::kI32, {4, 0, 3, 3, 1});
        std::vector<std::vector<std::byte>> results;
        for (const std::string& variant : variants_of<RopeInplace>()) {
          const TestTensor q({5, 3, R}, format, x.values());
          FATHOM_EXPECT_OK(launch<RopeInplace>(ex.with("rope_inplace", variant), "test",
                                               {.q = q.view(),
                                                .k = {},
                                                .positions = positions.view(),
                                                .table = table.view(),
                                                .style = style}));
          results.push_back(q.bytes());
        }
        for (const auto& bytes : results)
          EXPECT_EQ(bytes, results[0]) << "R=" << R;
      }
    }
  }
}

TEST(RopeInplace, RefusesPositionsOutsideTheTable) {
  TestExec ex;
  const TestTensor q({2, 1, 4}, kF32);
  const TestTensor table = table_of({0.3, 1.1});
  for (float bad : {1.0f, -1.0f}) {
    const TestTensor positions({2}, Format::kI32, {0, bad});

    const Status status = launch<RopeInplace>(
        *ex, "test",
        {.q = q.view(), .k = {}, .positions = positions.view(), .table = table.view()});

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("positions[1] is"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace fathom
