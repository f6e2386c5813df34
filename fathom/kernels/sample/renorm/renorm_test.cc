#include "fathom/kernels/sample/renorm/renorm.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/core/catalog.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/sample/thresholds.h"

namespace fathom {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Row = std::vector<float>;

class RenormTest : public testing::Test {
 protected:
  RenormTest() { install_cpu_kernels(best_isa()); }

  static View row(Row& v) {
    return make_view(v.data(), {1, static_cast<int64_t>(v.size())}, Format::kF32);
  }

  Row top_k(Row p, int32_t k) {
    Row y(p.size());
    const Status s =
        launch<RenormTopK>(runner.exec(), "sampler",
                           {.probs = row(p), .k = make_view(&k, {1}, Format::kI32), .y = row(y)});
    EXPECT_TRUE(s.ok()) << s.message();
    return y;
  }

  Row top_p(Row p, float mass) {
    Row y(p.size());
    const Status s = launch<RenormTopP>(
        runner.exec(), "sampler",
        {.probs = row(p), .p = make_view(&mass, {1}, Format::kF32), .y = row(y)});
    EXPECT_TRUE(s.ok()) << s.message();
    return y;
  }

  Row softmax(Row z, float temperature) {
    // In place.
    const Status s =
        launch<SoftmaxTemperature>(runner.exec(), "sampler",
                                   {.logits = row(z),
                                    .temperature = make_view(&temperature, {1}, Format::kF32),
                                    .probs = row(z)});
    EXPECT_TRUE(s.ok()) << s.message();
    return z;
  }

  CaseRunner runner{1};
};

TEST_F(RenormTest, TopKKeepsTiesAndScales) {
  EXPECT_EQ(top_k({.25f, .125f, .25f, .25f, .125f}, 2), (Row{1 / 3.f, 0, 1 / 3.f, 1 / 3.f, 0}));
  EXPECT_EQ(top_k({.1f, .5f, .4f}, 1), (Row{0, 1, 0}));
}

TEST_F(RenormTest, TopKOfTheWholeRowCopiesItUnscaled) {
  EXPECT_EQ(top_k({.1f, .2f}, 2), (Row{.1f, .2f}));
  EXPECT_EQ(top_k({.1f, .2f}, 1 << 30), (Row{.1f, .2f}));
}

TEST_F(RenormTest, TopPKeepsTheTokenThatCrosses) {
  EXPECT_EQ(top_p({.5f, .25f, .125f, .125f}, .5f), (Row{1, 0, 0, 0}));
  EXPECT_EQ(top_p({.5f, .25f, .125f, .125f}, .51f), (Row{2 / 3.f, 1 / 3.f, 0, 0}));
  EXPECT_EQ(top_p({.5f, .25f, .125f, .125f}, .8f), (Row{.5f, .25f, .125f, .125f}));
}

TEST_F(RenormTest, TopPAboveTheMassKeepsAllAndScales) {
  EXPECT_EQ(top_p({.25f, .25f}, .9f), (Row{.5f, .5f}));
  EXPECT_EQ(top_p({1, 3}, 1.0f), (Row{.25f, .75f}));
}

TEST_F(RenormTest, NanAndNegativeProbabilitiesCountAsZero) {
  EXPECT_EQ(top_k({kNan, .5f, -2, .25f}, 1), (Row{0, 1, 0, 0}));
  EXPECT_EQ(top_p({kNan, .5f, -2, .25f}, .4f), (Row{0, 1, 0, 0}));
  EXPECT_EQ(top_p({kNan, .5f, -2, .5f}, 1.0f), (Row{0, .5f, 0, .5f}));
}

TEST_F(RenormTest, SoftmaxAtTemperatureZeroIsTheArgmax) {
  EXPECT_EQ(softmax({1, 3, 3, 2}, 0), (Row{0, 1, 0, 0}));
}

TEST_F(RenormTest, SoftmaxSumsToOneOverAVocabulary) {
  Row z(129280);
  for (size_t v = 0; v < z.size(); ++v)
    z[v] = static_cast<float>(v % 1000) * 0.01f;

  const Row p = softmax(z, 0.6f);

  EXPECT_NEAR(std::accumulate(p.begin(), p.end(), 0.0), 1.0, 1e-5);
}

TEST_F(RenormTest, SoftmaxOfUnusableLogitsIsStillADistribution) {
  EXPECT_EQ(softmax({kNan, kNan, kNan}, 1), (Row{1, 0, 0}));
  EXPECT_EQ(softmax({-kInf, -kInf}, 1), (Row{1, 0}));
  EXPECT_EQ(softmax({0, kInf, 1}, 1), (Row{0, 1, 0}));
  EXPECT_EQ(softmax({kNan, 5, -kInf}, 1), (Row{0, 1, 0}));
}

TEST_F(RenormTest, RefusesParametersOutOfRange) {
  Row p = {.5f, .5f}, y(2);
  float value = 0;
  int32_t k = 0;
  const View parameter = make_view(&value, {1}, Format::kF32);

  EXPECT_NE(
      launch<RenormTopK>(runner.exec(), "sampler",
                         {.probs = row(p), .k = make_view(&k, {1}, Format::kI32), .y = row(y)})
          .message()
          .find("k[0] is 0, expected at least 1"),
      std::string::npos);
  EXPECT_NE(
      launch<RenormTopP>(runner.exec(), "sampler", {.probs = row(p), .p = parameter, .y = row(y)})
          .message()
          .find("p[0] is 0, expected a positive number"),
      std::string::npos);
  value = -1;
  EXPECT_NE(
      launch<SoftmaxTemperature>(runner.exec(), "sampler",
                                 {.logits = row(p), .temperature = parameter, .probs = row(y)})
          .message()
          .find("temperature[0] is -1"),
      std::string::npos);
}

TEST(Thresholds, FindEveryRankExactly) {
  // Values that differ in the first, the middle and the last bits of the float.
  const Row p = {1.0f, 0.5f, 0x1.000002p-1f, 0x1.0008p-1f, 1e-30f, 0x1p-149f, 3.0f, 0.0f, 0.5f};
  Row sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());

  for (int64_t k = 1; k < 9; ++k) {
    EXPECT_EQ(top_k_threshold(p.data(), 9, k).threshold, sorted[static_cast<size_t>(k - 1)]) << k;
  }
  EXPECT_EQ(top_k_threshold(p.data(), 9, 9).threshold, 0.0f);
}

TEST(Thresholds, AreThoseOfASortedRowInLongRowsToo) {
  Rng rng(9);
  Row p(5000);
  for (float& v : p)
    v = static_cast<float>(rng.next_below(3000)) * 0x1p-12f;
  Row sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());

  double mass = 0;
  for (int64_t k = 1; k <= 4999; ++k) {
    mass += double{sorted[static_cast<size_t>(k - 1)]};
    if (k % 97 != 0) continue;
    ASSERT_EQ(top_k_threshold(p.data(), 5000, k).threshold, sorted[static_cast<size_t>(k - 1)]);
    ASSERT_EQ(top_p_threshold(p.data(), 5000, mass).threshold, sorted[static_cast<size_t>(k - 1)]);
  }
}

TEST(Thresholds, ReachEveryMassExactly) {
  const Row p = {1, 2, 4, 8, 4};

  EXPECT_EQ(top_p_threshold(p.data(), 5, 8).threshold, 8);
  EXPECT_EQ(top_p_threshold(p.data(), 5, 8.5).threshold, 4);
  EXPECT_EQ(top_p_threshold(p.data(), 5, 8.5).mass, 16);
  EXPECT_EQ(top_p_threshold(p.data(), 5, 19).threshold, 1);
  EXPECT_EQ(top_p_threshold(p.data(), 5, 19.5).threshold, 0);
}

}  // namespace
}  // namespace fathom
