#include "fathom/kernels/sample/renorm/renorm.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/sample/thresholds.h"

namespace fathom {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Row = std::vector<float>;

class RenormTest : public testing::Test {
 protected:
  static View row(Row& v) {
    return make_view(v.data(), {1, static_cast<int64_t>(v.size())}, Format::kF32);
  }

  Row top_k(Row p, int32_t k) {
    Row y(p.size());
    const Status s = launch<RenormTopK>(
        *runner, "sampler", {.probs = row(p), .k = make_view(&k, {1}, Format::kI32), .y = row(y)});
    EXPECT_TRUE(s.ok()) << s.message();
    return y;
  }

  Row top_p(Row p, float mass) {
    Row y(p.size());
    const Status s = launch<RenormTopP>(
        *runner, "sampler",
        {.probs = row(p), .p = make_view(&mass, {1}, Format::kF32), .y = row(y)});
    EXPECT_TRUE(s.ok()) << s.message();
    return y;
  }

  Row softmax(Row z, float temperature) {
    // In place.
    const Status s =
        launch<SoftmaxTemperature>(*runner, "sampler",
                                   {.logits = row(z),
                                    .temperature = make_view(&temperature, {1}, Format::kF32),
                                    .probs = row(z)});
    EXPECT_TRUE(s.ok()) << s.message();
    return z;
  }

  TestExec runner{1};
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

TEST_F(RenormTest, OneNumberServesAllRows) {
  Row p = {.5f, .25f, .125f, .125f, .125f, .125f, .25f, .5f}, y(8);
  const View probs = make_view(p.data(), {2, 4}, Format::kF32);
  const View out = make_view(y.data(), {2, 4}, Format::kF32);

  ASSERT_TRUE(launch<RenormTopK>(*runner, "sampler", {.probs = probs, .y = out, .k_all = 1}).ok());
  EXPECT_EQ(y, (Row{1, 0, 0, 0, 0, 0, 0, 1}));
  ASSERT_TRUE(
      launch<RenormTopP>(*runner, "sampler", {.probs = probs, .y = out, .p_all = .6f}).ok());
  EXPECT_EQ(y, (Row{2 / 3.f, 1 / 3.f, 0, 0, 0, 0, 1 / 3.f, 2 / 3.f}));
  EXPECT_NE(launch<RenormTopK>(*runner, "sampler", {.probs = probs, .y = out, .k_all = 0})
                .message()
                .find("k_all is 0, expected at least 1"),
            std::string::npos);
}

TEST_F(RenormTest, RefusesParametersOutOfRange) {
  Row p = {.5f, .5f}, y(2);
  float value = 0;
  int32_t k = 0;
  const View parameter = make_view(&value, {1}, Format::kF32);

  EXPECT_NE(
      launch<RenormTopK>(*runner, "sampler",
                         {.probs = row(p), .k = make_view(&k, {1}, Format::kI32), .y = row(y)})
          .message()
          .find("k[0] is 0, expected at least 1"),
      std::string::npos);
  EXPECT_NE(launch<RenormTopP>(*runner, "sampler", {.probs = row(p), .p = parameter, .y = row(y)})
                .message()
                .find("p[0] is 0, expected a positive number"),
            std::string::npos);
  value = -1;
  EXPECT_NE(launch<SoftmaxTemperature>(
                *runner, "sampler", {.logits = row(p), .temperature = parameter, .probs = row(y)})
                .message()
                .find("temperature[0] is -1"),
            std::string::npos);
}

/// The scans of every instruction set of this machine.
std::vector<const ProbabilityScans*> all_scans() {
  if (best_isa() < Isa::kAvx512) return {&kPortableScans};
  return {&kPortableScans, &kAvx512Scans};
}

/// Memory for the scans of a row.
class Room {
 public:
  explicit Room(size_t count)
      : buffer_(Buffer::allocate(
                    DeviceKind::kCpu, threshold_room(static_cast<int64_t>(count)) * 4, "a test")
                    .value()) {}

  float* data() { return reinterpret_cast<float*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

Row descending(Row p) {
  std::sort(p.rbegin(), p.rend());
  return p;
}

TEST(Thresholds, FindEveryRankExactly) {
  // Values that differ in the first, the middle and the last bits of the float.
  const Row p = {1.0f, 0.5f, 0x1.000002p-1f, 0x1.0008p-1f, 1e-30f, 0x1p-149f, 3.0f, 0.0f, 0.5f};
  const Row sorted = descending(p);
  Room room(p.size());

  for (const ProbabilityScans* scans : all_scans()) {
    for (int64_t k = 1; k < 9; ++k) {
      EXPECT_EQ(scans->top_k(p.data(), 9, k, room.data()).threshold,
                sorted[static_cast<size_t>(k - 1)])
          << k;
    }
    EXPECT_EQ(scans->top_k(p.data(), 9, 9, room.data()).threshold, 0.0f);
  }
}

/// Rows of every length and kind: what the thresholds are is known from the sorted row.
class ThresholdRows : public testing::TestWithParam<size_t> {
 protected:
  /// Multiples of 2^-12, so that sums are exact; zeros, negative values and NaN among them.
  Row make_row() const {
    Rng rng(9, GetParam());
    Row p(GetParam());
    for (float& v : p)
      v = static_cast<float>(rng.next_below(3000)) * 0x1p-12f;
    for (size_t i = 3; i < p.size(); i += 17)
      p[i] = i % 2 == 0 ? kNan : -1.0f;
    return p;
  }
};

TEST_P(ThresholdRows, AreThoseOfASortedRow) {
  const Row p = make_row();
  Row usable = p;
  for (float& v : usable)
    v = usable_probability(v);
  const Row sorted = descending(usable);
  const auto count = static_cast<int64_t>(p.size());
  Room room(p.size());

  for (const ProbabilityScans* scans : all_scans()) {
    double mass = 0;
    for (int64_t k = 1; k < count; ++k) {
      mass += double{sorted[static_cast<size_t>(k - 1)]};
      if (k > 3 && k % 97 != 0 && k + 3 < count) continue;
      const float expected = sorted[static_cast<size_t>(k - 1)];
      ASSERT_EQ(scans->top_k(p.data(), count, k, room.data()).threshold, expected) << k;
      if (expected == 0) continue;
      const Kept by_mass = scans->top_p(p.data(), count, mass, room.data());
      ASSERT_EQ(by_mass.threshold, expected) << k;
      ASSERT_EQ(by_mass.mass, kPortableScans.mass_from(p.data(), count, expected));
      ASSERT_EQ(scans->mass_from(p.data(), count, expected), by_mass.mass);
    }
    EXPECT_EQ(scans->largest(p.data(), count), sorted[0]);
    EXPECT_EQ(scans->has_nan(p.data(), count), count > 20);
  }
}

TEST_P(ThresholdRows, GatherKeepsTheOrder) {
  const Row p = make_row();
  Row expected;
  for (float v : p) {
    if (v >= 0.25f) expected.push_back(v);
  }
  for (const ProbabilityScans* scans : all_scans()) {
    Room room(p.size());
    const auto count = static_cast<int64_t>(p.size());
    const auto kept = static_cast<size_t>(scans->gather_from(p.data(), count, 0.25f, room.data()));
    EXPECT_EQ(Row(room.data(), room.data() + kept), expected);
  }
}

// From 8,192 on the AVX-512 scans take a sample of the row.
INSTANTIATE_TEST_SUITE_P(Lengths,
                         ThresholdRows,
                         testing::Values(1, 2, 3, 15, 16, 17, 63, 64, 65, 5000, 8191, 20011));

TEST(Thresholds, AreExactWhereASampleMisleads) {
  // Everything of weight stands in the last tenth, or nothing does but every 32nd value.
  Row late(20000, 1e-6f), spread(20000, 1e-6f), flat(20000, 0.5f);
  for (size_t i = 0; i < 20000; ++i) {
    const float value = 1.0f + static_cast<float>(i) * 0x1p-20f;
    if (i >= 18000) late[i] = value;
    if (i % 78 < 16) spread[i] = value;
  }
  Room room(20000);
  for (const ProbabilityScans* scans : all_scans()) {
    for (const Row& p : {late, spread, flat}) {
      const Row sorted = descending(p);
      for (int64_t k : {1, 50, 1500, 4999}) {
        EXPECT_EQ(scans->top_k(p.data(), 20000, k, room.data()).threshold,
                  sorted[static_cast<size_t>(k - 1)])
            << k;
      }
    }
  }
}

TEST(Thresholds, ReachEveryMassExactly) {
  const Row p = {1, 2, 4, 8, 4};
  Room room(p.size());

  for (const ProbabilityScans* scans : all_scans()) {
    const auto top_p = [&](double mass) { return scans->top_p(p.data(), 5, mass, room.data()); };
    EXPECT_EQ(top_p(8).threshold, 8);
    EXPECT_EQ(top_p(8.5).threshold, 4);
    EXPECT_EQ(top_p(8.5).mass, 16);
    EXPECT_EQ(top_p(19).threshold, 1);
    EXPECT_EQ(top_p(19.5).threshold, 0);
  }
}

}  // namespace
}  // namespace fathom
