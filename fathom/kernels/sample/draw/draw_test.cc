#include "fathom/kernels/sample/draw/draw.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

const std::vector<float> kProbs = {0.05f, 0.3f, 0.02f, 0.25f, 0.08f, 0.2f, 0.1f};

class DrawTest : public testing::Test {
 protected:
  int32_t top_k_top_p(std::vector<float> p,
                      int32_t k,
                      float top_p,
                      float u,
                      FilterOrder order = FilterOrder::kTopKFirst) {
    int32_t id = -1;
    const Status status = launch<SampleTopKTopP>(
        *runner, "sampler",
        {.probs = make_view(p.data(), {1, static_cast<int64_t>(p.size())}, Format::kF32),
         .k = make_view(&k, {1}, Format::kI32),
         .top_p = make_view(&top_p, {1}, Format::kF32),
         .uniform = make_view(&u, {1}, Format::kF32),
         .ids = make_view(&id, {1}, Format::kI32),
         .order = order});
    EXPECT_TRUE(status.ok()) << status.message();
    return id;
  }

  int32_t min_p(std::vector<float> p, float least, float u) {
    int32_t id = -1;
    const Status status = launch<SampleMinP>(
        *runner, "sampler",
        {.probs = make_view(p.data(), {1, static_cast<int64_t>(p.size())}, Format::kF32),
         .min_p = make_view(&least, {1}, Format::kF32),
         .uniform = make_view(&u, {1}, Format::kF32),
         .ids = make_view(&id, {1}, Format::kI32)});
    EXPECT_TRUE(status.ok()) << status.message();
    return id;
  }

  /// Chi-square of many draws against the exact distribution; make_args(probs, uniform, ids) gives
  /// a launch of kBatch draws from one row.
  template <class K, class MakeArgs>
  double chi_square(const std::vector<double>& exact, MakeArgs make_args) {
#ifdef FATHOM_SANITIZED
    constexpr int kLaunches = 20;
#else
    constexpr int kLaunches = 1000;
#endif
    std::vector<float> p = kProbs;
    View probs = make_view(p.data(), {kBatch, static_cast<int64_t>(p.size())}, Format::kF32);
    probs.strides[0] = 0;  // every draw reads the same row
    std::vector<float> uniform(kBatch);
    std::vector<int32_t> ids(kBatch);
    std::vector<int64_t> counts(exact.size(), 0);
    TestExec two_threads(2);
    Rng rng(77);
    for (int i = 0; i < kLaunches; ++i) {
      for (float& u : uniform)
        u = rng.next_uniform();
      const Status status =
          launch<K>(*two_threads, "sampler",
                    make_args(probs, make_view(uniform.data(), {kBatch}, Format::kF32),
                              make_view(ids.data(), {kBatch}, Format::kI32)));
      EXPECT_TRUE(status.ok()) << status.message();
      for (int32_t id : ids)
        ++counts[static_cast<size_t>(id)];
    }
    double sum = 0;
    for (size_t v = 0; v < exact.size(); ++v) {
      const double expected = exact[v] * static_cast<double>(kLaunches * kBatch);
      const auto found = static_cast<double>(counts[v]);
      if (expected == 0) {
        EXPECT_EQ(counts[v], 0) << "token " << v << " must not be drawn";
        continue;
      }
      sum += (found - expected) * (found - expected) / expected;
    }
    return sum;
  }

  double chi_square_top_k_top_p(const std::vector<double>& exact,
                                int32_t k,
                                float top_p,
                                FilterOrder order = FilterOrder::kTopKFirst) {
    std::vector<int32_t> ks(kBatch, k);
    std::vector<float> ps(kBatch, top_p);
    return chi_square<SampleTopKTopP>(exact, [&](View probs, View uniform, View ids) {
      return SampleTopKTopP::Args{.probs = probs,
                                  .k = make_view(ks.data(), {kBatch}, Format::kI32),
                                  .top_p = make_view(ps.data(), {kBatch}, Format::kF32),
                                  .uniform = uniform,
                                  .ids = ids,
                                  .order = order};
    });
  }

  double chi_square_min_p(const std::vector<double>& exact, float min_p) {
    std::vector<float> least(kBatch, min_p);
    return chi_square<SampleMinP>(exact, [&](View probs, View uniform, View ids) {
      return SampleMinP::Args{.probs = probs,
                              .min_p = make_view(least.data(), {kBatch}, Format::kF32),
                              .uniform = uniform,
                              .ids = ids};
    });
  }

  /// 100,000 draws from one long row, by min_p 0.5 or k 1500, in classes of equal width.
  double chi_square_of_row(std::vector<float>& p,
                           bool by_min_p,
                           const std::string& variant,
                           const std::vector<double>& exact,
                           double mass) {
#ifdef FATHOM_SANITIZED
    constexpr int kLaunches = 5;
#else
    constexpr int kLaunches = 100;
#endif
    View probs = make_view(p.data(), {kBatch, static_cast<int64_t>(p.size())}, Format::kF32);
    probs.strides[0] = 0;  // every draw reads the same row
    std::vector<int32_t> ids(kBatch);
    const View out = make_view(ids.data(), {kBatch}, Format::kI32);
    std::vector<int64_t> counts(exact.size(), 0);
    TestExec exec(2);
    for (uint64_t i = 0; i < kLaunches; ++i) {
      FATHOM_EXPECT_OK(
          by_min_p ? launch<SampleMinP>(
                         exec.with("sample_min_p", variant), "sampler",
                         {.probs = probs, .ids = out, .min_p_all = 0.5f, .seed = 5, .offset = i})
                   : launch<SampleTopKTopP>(
                         exec.with("sample_top_k_top_p", variant), "sampler",
                         {.probs = probs, .ids = out, .k_all = 1500, .seed = 6, .offset = i}));
      for (int32_t id : ids)
        ++counts[static_cast<size_t>(id) * exact.size() / p.size()];
    }
    double sum = 0;
    for (size_t c = 0; c < exact.size(); ++c) {
      const double expected = exact[c] / mass * static_cast<double>(kLaunches * kBatch);
      const double off = static_cast<double>(counts[c]) - expected;
      sum += off * off / expected;
    }
    return sum;
  }

  static constexpr int64_t kBatch = 1000;
  TestExec runner{1};
};

// p = 1e-4: 23.5 for 4 degrees of freedom, 21.1 for 3, 27.9 for 6.
TEST_F(DrawTest, TopKThenTopPFollowsTheExactDistribution) {
  // The 5 largest are .3 .25 .2 .1 .08 of .93; 0.9 of that is .837, which .85 exceeds without .08.
  const std::vector<double> exact = {0, .3 / .85, 0, .25 / .85, 0, .2 / .85, .1 / .85};

  EXPECT_LT(chi_square_top_k_top_p(exact, 5, 0.9f), 21.1);
}

TEST_F(DrawTest, JointFiltersSeeTheOriginalMasses) {
  // 0.9 of the whole row needs .3 .25 .2 .1 .08: all five of top-k, where the order above drops
  // one.
  const std::vector<double> exact = {0, .3 / .93, 0, .25 / .93, .08 / .93, .2 / .93, .1 / .93};

  EXPECT_LT(chi_square_top_k_top_p(exact, 5, 0.9f, FilterOrder::kJoint), 23.5);
}

TEST_F(DrawTest, WithoutFiltersItFollowsTheRow) {
  const std::vector<double> exact(kProbs.begin(), kProbs.end());

  EXPECT_LT(chi_square_top_k_top_p(exact, 1 << 30, 1.0f), 27.9);
}

TEST_F(DrawTest, MinPFollowsTheExactDistribution) {
  // 0.3 * 0.3 = 0.09: four tokens stay.
  const std::vector<double> exact = {0, .3 / .85, 0, .25 / .85, 0, .2 / .85, .1 / .85};

  EXPECT_LT(chi_square_min_p(exact, 0.3f), 21.1);
}

// 8,200 tokens in 40 classes, so that a row has many blocks and its candidates come from a sample.
// 39 degrees of freedom: 79.7 at p = 1e-4.
TEST_F(DrawTest, LongRowsFollowTheirDistributionInEveryVariant) {
  constexpr size_t kTokens = 8200, kClasses = 40;
  std::vector<float> p(kTokens);
  std::vector<double> exact(kClasses, 0.0);
  Rng shape(21);
  for (float& v : p) {
    const float u = shape.next_uniform();
    v = u * u * u;
  }
  // What min_p = 0.5 and, as another filter, k = 1500 leave.
  float largest = 0;
  for (float v : p)
    largest = std::max(largest, v);
  std::vector<float> sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());

  const struct {
    bool by_min_p;
    float least;
  } filters[] = {{true, 0.5f * largest}, {false, sorted[1499]}};

  for (const auto& filter : filters) {
    double mass = 0;
    std::fill(exact.begin(), exact.end(), 0.0);
    for (size_t v = 0; v < kTokens; ++v) {
      if (p[v] < filter.least) continue;
      exact[v * kClasses / kTokens] += double{p[v]};
      mass += double{p[v]};
    }
    for (const std::string& variant : variants_of<SampleMinP>()) {
      const double sum = chi_square_of_row(p, filter.by_min_p, variant, exact, mass);
      EXPECT_LT(sum, 79.7) << variant << (filter.by_min_p ? " min_p" : " top_k");
    }
  }
}

TEST_F(DrawTest, ProbabilitiesNeedNotSumToOne) {
  std::vector<float> scaled = kProbs;
  for (float& p : scaled)
    p *= 1000;
  for (float u : {0.0f, 0.1f, 0.35f, 0.5f, 0.9f, 0.999f}) {
    EXPECT_EQ(top_k_top_p(scaled, 5, 0.9f, u), top_k_top_p(kProbs, 5, 0.9f, u)) << u;
    EXPECT_EQ(min_p(scaled, 0.3f, u), min_p(kProbs, 0.3f, u)) << u;
  }
}

TEST_F(DrawTest, TopKOneIsTheArgmaxForEveryRandomNumber) {
  for (float u : {0.0f, 0.5f, 0.99999994f}) {
    EXPECT_EQ(top_k_top_p(kProbs, 1, 1.0f, u), 1);
    EXPECT_EQ(min_p(kProbs, 1.0f, u), 1);
  }
}

TEST_F(DrawTest, TokenThatCrossesTopPIsKept) {
  // .3 alone is below .4; with .25 it is above: two tokens.
  EXPECT_EQ(top_k_top_p(kProbs, 7, 0.4f, 0.99f), 3);
  EXPECT_EQ(top_k_top_p(kProbs, 7, 0.4f, 0.0f), 1);
}

TEST_F(DrawTest, TiesAtTheThresholdAreAllKept) {
  const std::vector<float> tied = {.25f, .25f, .25f, .25f};

  EXPECT_EQ(top_k_top_p(tied, 2, 1.0f, 0.99f), 3);
  EXPECT_EQ(top_k_top_p(tied, 4, 0.3f, 0.99f), 3);
}

TEST_F(DrawTest, NeverDrawsAnImpossibleToken) {
  EXPECT_EQ(top_k_top_p({0, 0, 1, 0}, 4, 1.0f, 0.0f), 2);
  EXPECT_EQ(top_k_top_p({0, 0, 1, 0}, 4, 1.0f, 0.99999994f), 2);
  EXPECT_EQ(min_p({0, 0, 1, 0}, 0.0f, 0.99999994f), 2);
}

TEST_F(DrawTest, EveryTokenOfALongRowIsWithinReach) {
  // 2,000 equal tokens between impossible ones: token 2k + 1 owns [k, k + 1) / 2000.
  std::vector<float> p(4001, 0.0f);
  for (size_t k = 0; k < 2000; ++k)
    p[2 * k + 1] = 0.5f;
  for (int32_t k : {0, 1, 254, 255, 256, 257, 511, 512, 1023, 1998, 1999}) {
    const float u = (static_cast<float>(k) + 0.5f) / 2000.0f;
    EXPECT_EQ(top_k_top_p(p, 1 << 30, 1.0f, u), 2 * k + 1);
    EXPECT_EQ(min_p(p, 0.5f, u), 2 * k + 1);
  }
}

TEST_F(DrawTest, AnyBitsGiveAnIdInRange) {
  for (const std::vector<float>& p :
       {std::vector<float>{kNan, kNan, kNan}, std::vector<float>{0, 0, 0},
        std::vector<float>{-1, -2, -3}, std::vector<float>{kInf, 1, kInf},
        std::vector<float>{kNan, 0.5f, -1}}) {
    for (float u : {0.0f, 0.5f, 0.99999994f}) {
      for (int32_t id : {top_k_top_p(p, 2, 0.9f, u), min_p(p, 0.1f, u),
                         top_k_top_p(p, 2, 0.9f, u, FilterOrder::kJoint)}) {
        EXPECT_GE(id, 0);
        EXPECT_LT(id, 3);
      }
    }
  }
  EXPECT_EQ(top_k_top_p({kNan, 0.5f, -1}, 2, 0.9f, 0.5f), 1);
}

TEST_F(DrawTest, SeedAndOffsetNameTheDraws) {
  std::vector<float> p(3 * 1000, 0.001f);
  std::vector<int32_t> ids(3), again(3), expected(3);
  const View probs = make_view(p.data(), {3, 1000}, Format::kF32);
  const auto draw = [&](std::vector<int32_t>& out, uint64_t seed, uint64_t offset) {
    FATHOM_EXPECT_OK(launch<SampleMinP>(*runner, "sampler",
                                        {.probs = probs,
                                         .ids = make_view(out.data(), {3}, Format::kI32),
                                         .seed = seed,
                                         .offset = offset}));
  };
  draw(ids, 42, 0);
  draw(again, 42, 0);
  EXPECT_EQ(ids, again);
  for (uint64_t b = 0; b < 3; ++b) {
    const double u = double{Rng(42, b, 0).next_uniform()};
    EXPECT_NEAR(ids[b], u * 1000, 1.0);
  }
  draw(again, 42, 1);
  EXPECT_NE(ids, again);
  draw(again, 43, 0);
  EXPECT_NE(ids, again);
}

TEST_F(DrawTest, NanIsAnErrorWhereTheCallerAsksForIt) {
  std::vector<float> p(4 * 50, 0.02f);
  std::vector<int32_t> ids(4, -7);
  const View probs = make_view(p.data(), {4, 50}, Format::kF32);
  const View out = make_view(ids.data(), {4}, Format::kI32);
  const auto error = [&](NanCheck check) {
    const Status by_min_p =
        launch<SampleMinP>(*runner, "sampler", {.probs = probs, .ids = out, .nan_check = check});
    const Status by_top_k = launch<SampleTopKTopP>(
        *runner, "sampler", {.probs = probs, .ids = out, .nan_check = check});
    EXPECT_EQ(by_min_p.ok(), by_top_k.ok());
    return by_top_k.message();
  };

  EXPECT_EQ(error(NanCheck::kError), "");
  p[2 * 50 + 31] = p[3 * 50 + 1] = kNan;
  EXPECT_EQ(error(NanCheck::kZero), "");
  std::fill(ids.begin(), ids.end(), -7);
  EXPECT_NE(error(NanCheck::kError).find("probs[2,31] is NaN"), std::string::npos);
  EXPECT_EQ(ids, std::vector<int32_t>(4, -7)) << "nothing is drawn";
}

TEST_F(DrawTest, RefusesParametersOutOfRange) {
  std::vector<float> p = kProbs;
  float min_p_value = 0.1f, top_p = 0.9f, u = 0.5f;
  int32_t k = 5, index = 0, id = 0;
  const auto error = [&] {
    const View probs = make_view(p.data(), {1, 7}, Format::kF32);
    const View uniform = make_view(&u, {1}, Format::kF32);
    const View indices = make_view(&index, {1}, Format::kI32);
    const View ids = make_view(&id, {1}, Format::kI32);
    return launch<SampleTopKTopP>(*runner, "sampler",
                                  {.probs = probs,
                                   .k = make_view(&k, {1}, Format::kI32),
                                   .top_p = make_view(&top_p, {1}, Format::kF32),
                                   .uniform = uniform,
                                   .indices = indices,
                                   .ids = ids})
               .message() +
           launch<SampleMinP>(*runner, "sampler",
                              {.probs = probs,
                               .min_p = make_view(&min_p_value, {1}, Format::kF32),
                               .uniform = uniform,
                               .indices = indices,
                               .ids = ids})
               .message();
  };

  EXPECT_EQ(error(), "");
  k = 0;
  EXPECT_NE(error().find("k[0] is 0, expected at least 1"), std::string::npos);
  k = 5;
  top_p = 0;
  EXPECT_NE(error().find("top_p[0] is 0, expected a positive number"), std::string::npos);
  top_p = 0.9f;
  u = 1.0f;
  EXPECT_NE(error().find("uniform[0] is 1, expected a number in [0, 1)"), std::string::npos);
  u = kNan;
  EXPECT_NE(error().find("uniform[0] is nan"), std::string::npos);
  u = 0.5f;
  index = 1;
  EXPECT_NE(error().find("indices[0] is 1, expected 0 to 0"), std::string::npos);
  index = 0;
  min_p_value = 1.5f;
  EXPECT_NE(error().find("min_p[0] is 1.5, expected a number in [0, 1]"), std::string::npos);
}

}  // namespace
}  // namespace fathom
