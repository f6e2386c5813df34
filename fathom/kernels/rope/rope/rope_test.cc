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
    TestTensor k({2, 1, 64}, kF32);
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
  for (const Format format : {Format::kBf16, Format::kF16, kF32}) {
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

TEST(Rope, VariantsGiveTheSameBits) {
  TestExec ex;
  Rng rng(11, 2);
  for (const Format format : {Format::kBf16, Format::kF16, kF32}) {
    for (const RopeStyle style : {RopeStyle::kInterleaved, RopeStyle::kHalfSplit}) {
      for (int64_t R : {2, 6, 30, 32, 34, 64, 66}) {
        TestTensor x({5, 3, R}, format);
        TestTensor table({5, R}, format);
        x.randomise(rng, 4.0f);
        table.randomise(rng);
        const TestTensor positions({5}, Format::kI64, {4, 0, 3, 3, 1});
        std::vector<std::vector<std::byte>> results;
        for (const std::string& variant : variants_of<Rope>()) {
          const TestTensor q({5, 3, R}, format, x.values());
          FATHOM_EXPECT_OK(launch<Rope>(ex.with("rope", variant), "test",
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

TEST(Rope, IsTheInplaceRotationInFloat32) {
  TestExec ex;
  Rng rng(12, 1);
  TestTensor x({3, 2, 8}, kF32);
  TestTensor table({4, 6}, kF32);
  x.randomise(rng);
  table.randomise(rng);
  const TestTensor positions({3}, Format::kI64, {3, 0, 2});
  const TestTensor a({3, 2, 8}, kF32, x.values());
  const TestTensor b({3, 2, 8}, kF32, x.values());

  FATHOM_EXPECT_OK(launch<Rope>(
      *ex, "test", {.q = a.view(), .k = {}, .positions = positions.view(), .table = table.view()}));
  FATHOM_EXPECT_OK(launch<RopeInplace>(*ex, "test",
                                       {.q = b.view(),
                                        .k = {},
                                        .positions = positions.view(),
                                        .table = table.view(),
                                        .style = RopeStyle::kHalfSplit}));

  EXPECT_EQ(a.bytes(), b.bytes());
}

TEST(Rope, RoundsEveryTermToTheFormat) {
  TestExec ex;
  for (const std::string& variant : variants_of<Rope>()) {
    // a c = 1.0234375 * 1.0078125 = 1.031433..., which bf16 rounds to b s = 1.03125.
    const TestTensor q({1, 1, 2}, Format::kBf16, {1.0234375f, 1.03125f});
    const TestTensor table({1, 2}, Format::kBf16, {1.0078125f, 1.0f});
    const TestTensor positions({1}, Format::kI64, 0.0f);

    FATHOM_EXPECT_OK(launch<Rope>(
        ex.with("rope", variant), "test",
        {.q = q.view(), .k = {}, .positions = positions.view(), .table = table.view()}));

    EXPECT_EQ(q[0], 0.0f) << "1.03143 is rounded to 1.03125 before the difference";
  }
}

TEST(Rope, TakesFlattenedHeadsOfABatch) {
  TestExec ex;
  Rng rng(13, 1);
  for (const std::string& variant : variants_of<Rope>()) {
    TestTensor heads({6, 2, 8}, Format::kBf16);
    TestTensor table({9, 8}, Format::kBf16);
    heads.randomise(rng);
    table.randomise(rng);
    const TestTensor flat({2, 3, 16}, Format::kBf16, heads.values());
    const TestTensor positions({6}, Format::kI64, {0, 1, 2, 8, 7, 6});

    for (const View& q : {heads.view(), reshape(flat.view(), {6, 2, 8})}) {
      FATHOM_EXPECT_OK(
          launch<Rope>(ex.with("rope", variant), "test",
                       {.q = q, .k = {}, .positions = positions.view(), .table = table.view()}));
    }

    EXPECT_EQ(heads.bytes(), flat.bytes());
  }
}

TEST(Rope, RefusesATableOfAnotherFormat) {
  TestExec ex;
  const TestTensor q({1, 1, 4}, Format::kBf16);
  const TestTensor table({1, 4}, kF32);
  const TestTensor positions({1}, Format::kI64, 0.0f);

  const Status status = launch<Rope>(
      *ex, "test", {.q = q.view(), .k = {}, .positions = positions.view(), .table = table.view()});

  EXPECT_NE(status.message().find("q is bf16 but table is f32"), std::string::npos)
      << status.message();
}

TEST(RopeInplace, KeepsNanAndInfinityWithinTheirPair) {
  TestExec ex;
  for (const std::string& variant : variants_of<RopeInplace>()) {
    const TestTensor q({1, 1, 6}, kF32, {NAN, 1, 2, 3, INFINITY, 1});
    const TestTensor positions({1}, Format::kI32, 0.0f);
    const TestTensor table = table_of({0.3, 1.1, 0.5});

    FATHOM_EXPECT_OK(launch<RopeInplace>(
        ex.with("rope_inplace", variant), "test",
        {.q = q.view(), .k = {}, .positions = positions.view(), .table = table.view()}));

    EXPECT_TRUE(std::isnan(q[0]) && std::isnan(q[1]));
    EXPECT_TRUE(std::isfinite(q[2]) && std::isfinite(q[3]));
    EXPECT_TRUE(std::isinf(q[4]) && std::isinf(q[5]));
  }
}

TEST(RopeInplace, RefusesAPartOfTheCacheOperands) {
  TestExec ex;
  const TestTensor q({1, 1, 4}, kF32);
  const TestTensor k({1, 1, 4}, kF32);
  const TestTensor cache({3, 1, 4}, kF32);
  const TestTensor table = table_of({0.3, 1.1});
  const TestTensor positions({1}, Format::kI32, 0.0f);
  const TestTensor slots({1}, Format::kI64, 3.0f);
  RopeInplace::Args args{.q = q.view(),
                         .k = k.view(),
                         .positions = positions.view(),
                         .table = table.view(),
                         .slots = slots.view(),
                         .k_cache = cache.view()};

  Status status = launch<RopeInplace>(*ex, "test", args);
  EXPECT_NE(status.message().find("are given together"), std::string::npos) << status.message();

  args.v = k.view();
  args.v_cache = cache.view();
  status = launch<RopeInplace>(*ex, "test", args);
  EXPECT_NE(status.message().find("slots[0] is 3 but the cache has slots 0..2"), std::string::npos)
      << status.message();
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
