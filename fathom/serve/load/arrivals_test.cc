#include "fathom/serve/load/arrivals.h"

#include <cmath>
#include <gtest/gtest.h>

#include "fathom/serve/load/variates.h"

namespace fathom::serve {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Moments {
  double mean = 0;
  double deviation = 0;
};

template <class Draw>
Moments moments_of(int64_t count, const Draw& draw) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double x = draw();
    sum += x;
    squares += x * x;
  }
  const double n = static_cast<double>(count);
  const double mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean)};
}

TEST(Variates, HaveTheMeansAndDeviationsTheyName) {
  constexpr int64_t kCount = 200'000;
  Rng rng(7);

  const Moments uniform = moments_of(kCount, [&] { return uniform_double(rng); });
  const Moments normal = moments_of(kCount, [&] { return normal_double(rng); });
  const Moments exponential = moments_of(kCount, [&] { return exponential_double(rng, 3); });

  // Four standard errors of the mean, deviation / sqrt(kCount) = 0.0022 * deviation.
  EXPECT_NEAR(uniform.mean, 0.5, 0.003);
  EXPECT_NEAR(uniform.deviation, std::sqrt(1.0 / 12), 0.003);
  EXPECT_NEAR(normal.mean, 0, 0.009);
  EXPECT_NEAR(normal.deviation, 1, 0.009);
  EXPECT_NEAR(exponential.mean, 3, 0.03);
  EXPECT_NEAR(exponential.deviation, 3, 0.06);
}

TEST(Variates, GammaHasItsShapeAsMeanAndVariance) {
  constexpr int64_t kCount = 200'000;
  for (const double shape : {0.2, 0.5, 1.0, 2.0, 20.0}) {
    Rng rng(11);
    const Moments m = moments_of(kCount, [&] { return gamma_double(rng, shape); });
    EXPECT_NEAR(m.mean, shape, 0.01 * std::sqrt(shape)) << shape;
    EXPECT_NEAR(m.deviation, std::sqrt(shape), 0.02 * std::sqrt(shape) + 0.01) << shape;
  }
}

TEST(Variates, LengthsHaveTheirMedianAndStayInTheirRange) {
  Rng rng(3);
  int64_t below = 0, longest = 0, shortest = 1'000'000;
  for (int i = 0; i < 20'000; ++i) {
    const int64_t length = lognormal_length(rng, 300, 1.2, 16, 8000);
    below += length < 300;
    longest = std::max(longest, length);
    shortest = std::min(shortest, length);
  }
  EXPECT_NEAR(static_cast<double>(below) / 20'000, 0.5, 0.015);
  EXPECT_EQ(longest, 8000);  // the tail is cut there
  EXPECT_EQ(shortest, 16);
}

TEST(Arrivals, AreAllAtOnceWithoutARate) {
  EXPECT_EQ(arrival_times_ns(3, {}), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_TRUE(arrival_times_ns(0, {.rate = 2}).empty());
}

TEST(Arrivals, OfInfiniteBurstinessAreEven) {
  EXPECT_EQ(arrival_times_ns(4, {.rate = 4, .burstiness = kInfinity}),
            (std::vector<int64_t>{250'000'000, 500'000'000, 750'000'000, 1'000'000'000}));
}

TEST(Arrivals, KeepTheRateWhateverTheSeed) {
  for (const uint64_t seed : {0u, 1u, 2u}) {
    const auto times = arrival_times_ns(1000, {.rate = 50, .burstiness = 0.5, .seed = seed});
    EXPECT_EQ(times.back(), 20'000'000'000) << seed;
    EXPECT_TRUE(std::is_sorted(times.begin(), times.end())) << seed;
  }
}

TEST(Arrivals, GapsVaryAsTheBurstinessSays) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const auto times = arrival_times_ns(50'000, {.rate = 100, .burstiness = burstiness, .seed = 5});
    size_t at = 0;
    int64_t before = 0;
    const Moments m = moments_of(static_cast<int64_t>(times.size()), [&] {
      const int64_t gap = times[at] - before;
      before = times[at++];
      return static_cast<double>(gap);
    });
    EXPECT_NEAR(m.mean, 1e7, 1);
    EXPECT_NEAR(m.deviation / m.mean, 1 / std::sqrt(burstiness), 0.05) << burstiness;
  }
}

TEST(Arrivals, SameSeedSameTimes) {
  const ArrivalOptions options{.rate = 3, .burstiness = 0.7, .seed = 9};
  ArrivalOptions other = options;
  other.seed = 10;

  EXPECT_EQ(arrival_times_ns(100, options), arrival_times_ns(100, options));
  EXPECT_NE(arrival_times_ns(100, options), arrival_times_ns(100, other));
}

}  // namespace
}  // namespace fathom::serve
