#include "fathom/kernels/moe/permute/permute.h"

#include <gtest/gtest.h>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"
#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/route/route.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

class PermuteTest : public testing::Test {
 protected:
  template <class T>
  static View rows(std::vector<T>& v, int64_t n, Format format) {
    const int64_t width = n == 0 ? 0 : static_cast<int64_t>(v.size()) / n;
    return make_view(v.data(), {n, width}, format);
  }

  template <class K>
  void pin(const char* variant) {
    runner.pin(K::kInfo.name, variant);
  }

  CaseRunner runner{cpu_kernels(), 2};
};

TEST_F(PermuteTest, PermuteThenUnpermuteWithWeightOneGivesBackEveryRowTopKTimes) {
  constexpr int64_t kTokens = 19, kTopK = 4, kExperts = 7, kWidth = 50;
  Rng rng(5);
  std::vector<int32_t> ids(kTokens * kTopK);
  for (int32_t& id : ids)
    id = static_cast<int32_t>(rng.next_below(kExperts));
  std::vector<Bf16> x(kTokens * kWidth);
  for (Bf16& v : x)
    v = bf16_from_float(rng.next_normal());
  std::vector<int32_t> offsets(kExperts + 1), src_row(ids.size()), dest(ids.size());
  std::vector<Bf16> permuted(ids.size() * kWidth), back(x.size());
  // 1/4 is exact, so a sum of four quarters is the row itself, bit for bit.
  std::vector<float> weights(ids.size(), 0.25f);

  ASSERT_TRUE(
      launch<RouteOffsets>(runner.exec(), "route",
                           {.ids = rows(ids, kTokens, Format::kI32),
                            .offsets = make_view(offsets.data(), {kExperts + 1}, Format::kI32),
                            .src_row = make_view(src_row.data(), {kTokens * kTopK}, Format::kI32),
                            .dest = rows(dest, kTokens, Format::kI32)})
          .ok());
  ASSERT_TRUE(
      launch<PermuteRows>(runner.exec(), "permute",
                          {.x = rows(x, kTokens, Format::kBf16),
                           .src_row = make_view(src_row.data(), {kTokens * kTopK}, Format::kI32),
                           .y = rows(permuted, kTokens * kTopK, Format::kBf16)})
          .ok());
  ASSERT_TRUE(launch<UnpermuteWeightedSum>(runner.exec(), "unpermute",
                                           {.x = rows(permuted, kTokens * kTopK, Format::kBf16),
                                            .dest = rows(dest, kTokens, Format::kI32),
                                            .weights = rows(weights, kTokens, Format::kF32),
                                            .y = rows(back, kTokens, Format::kBf16)})
                  .ok());

  EXPECT_EQ(back, x);
  // Every position of the order was filled with the token that dest names.
  for (int64_t slot = 0; slot < kTokens * kTopK; ++slot) {
    EXPECT_EQ(src_row[static_cast<size_t>(dest[static_cast<size_t>(slot)])], slot / kTopK);
  }
}

TEST_F(PermuteTest, SumsInTheOrderOfTheSlots) {
  // In float32, (2^24 + 1) - 2^24 is 0 and (2^24 - 2^24) + 1 is 1.
  std::vector<float> x = {16777216.0f, 1.0f, -16777216.0f};
  std::vector<int32_t> order_a = {0, 1, 2};
  std::vector<int32_t> order_b = {0, 2, 1};
  for (const char* variant : {"portable", ""}) {
    pin<UnpermuteWeightedSum>(variant);
    std::vector<float> y(1);
    const auto sum = [&](std::vector<int32_t>& dest) {
      EXPECT_TRUE(launch<UnpermuteWeightedSum>(runner.exec(), "combine",
                                               {.x = rows(x, 3, Format::kF32),
                                                .dest = rows(dest, 1, Format::kI32),
                                                .y = rows(y, 1, Format::kF32)})
                      .ok());
      return y[0];
    };

    EXPECT_EQ(sum(order_a), 0.0f);
    EXPECT_EQ(sum(order_b), 1.0f);
  }
}

TEST_F(PermuteTest, AddsInPlace) {
  std::vector<float> x = {1, 2, 3};
  std::vector<int32_t> dest = {0};
  std::vector<float> weights = {2};
  std::vector<float> y = {10, 20, 30};

  ASSERT_TRUE(launch<UnpermuteWeightedSum>(runner.exec(), "combine",
                                           {.x = rows(x, 1, Format::kF32),
                                            .dest = rows(dest, 1, Format::kI32),
                                            .weights = rows(weights, 1, Format::kF32),
                                            .add = rows(y, 1, Format::kF32),
                                            .y = rows(y, 1, Format::kF32)})
                  .ok());

  EXPECT_EQ(y, (std::vector<float>{12, 24, 36}));
}

TEST_F(PermuteTest, AllVariantsGiveTheSameBits) {
  Rng rng(6);
  std::vector<Bf16> x(40 * 37);
  for (Bf16& v : x)
    v = bf16_from_float(rng.next_normal());
  std::vector<int32_t> dest(10 * 4);
  for (int32_t& d : dest)
    d = static_cast<int32_t>(rng.next_below(41)) - 1;
  std::vector<float> weights(dest.size());
  for (float& w : weights)
    w = rng.next_uniform();
  std::vector<std::vector<float>> results;
  for (const char* variant : {"portable", ""}) {
    pin<UnpermuteWeightedSum>(variant);
    std::vector<float> y(10 * 37);
    ASSERT_TRUE(launch<UnpermuteWeightedSum>(runner.exec(), "combine",
                                             {.x = rows(x, 40, Format::kBf16),
                                              .dest = rows(dest, 10, Format::kI32),
                                              .weights = rows(weights, 10, Format::kF32),
                                              .y = rows(y, 10, Format::kF32)})
                    .ok());
    results.push_back(y);
  }

  EXPECT_EQ(results[0], results[1]);
}

TEST_F(PermuteTest, RefusesRowsThatDoNotExist) {
  std::vector<float> x = {1, 2};
  std::vector<float> y(2);
  std::vector<int32_t> index = {1, 2};
  const auto permute = [&] {
    return launch<PermuteRows>(runner.exec(), "permute",
                               {.x = rows(x, 2, Format::kF32),
                                .src_row = make_view(index.data(), {2}, Format::kI32),
                                .y = rows(y, 2, Format::kF32)});
  };

  EXPECT_NE(permute().message().find("src_row[1] is 2, expected -1 to 1"), std::string::npos);
  index = {-2, 0};
  EXPECT_NE(permute().message().find("src_row[0] is -2"), std::string::npos);
  index = {-1, 0};
  EXPECT_TRUE(permute().ok());
  EXPECT_EQ(y, (std::vector<float>{0, 1}));
}

TEST_F(PermuteTest, RefusesOtherFormats) {
  std::vector<float> x = {1, 2};
  std::vector<Bf16> y(2);
  std::vector<int32_t> index = {0, 1};

  const Status status = launch<PermuteRows>(runner.exec(), "permute",
                                            {.x = rows(x, 2, Format::kF32),
                                             .src_row = make_view(index.data(), {2}, Format::kI32),
                                             .y = rows(y, 2, Format::kBf16)});

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("x is f32 but y is bf16"), std::string::npos);
}

}  // namespace
}  // namespace fathom
