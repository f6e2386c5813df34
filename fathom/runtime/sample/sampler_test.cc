#include "fathom/runtime/sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <numeric>

#include "fathom/base/rng.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

constexpr int64_t kVocabulary = 23;
const float kInf = std::numeric_limits<float>::infinity();

// What one call of the sampler needs.
class Fixture {
 public:
  explicit Fixture(int64_t num_ids = kVocabulary, int64_t max_rows = 1024)
      : sampler(num_ids, max_rows) {
    ex_.kernels = &cpu_kernels();
    ex_.pool = &pool_;
    ex_.num_threads = pool_.size();
    ex_.activations = &activations_;
    ex_.scratch = &scratch_;
  }

  // Samples copies of the rows; logits are [R][V].
  std::vector<SampleResult> sample(std::vector<std::vector<float>> logits,
                                   const std::vector<SampleRow>& rows) {
    activations_.reset();
    const auto width = static_cast<int64_t>(logits[0].size());
    std::vector<float> flat;
    for (const auto& row : logits)
      flat.insert(flat.end(), row.begin(), row.end());
    const View view =
        make_view(flat.data(), {static_cast<int64_t>(logits.size()), width}, Format::kF32);
    std::vector<SampleResult> results(rows.size());
    const Status status = sampler.sample(ex_, view, rows, results);
    EXPECT_TRUE(status.ok()) << status.message();
    return results;
  }

  Sampler sampler;

 private:
  ThreadPool pool_{2, PinThreads::kNo};
  Arena activations_{Buffer::allocate(DeviceKind::kCpu, 64 << 20, "test").value()};
  Arena scratch_{Buffer::allocate(DeviceKind::kCpu, 64 << 20, "test").value()};
  Exec ex_;
};

std::vector<float> test_logits(uint64_t seed, int64_t count = kVocabulary) {
  Rng rng(seed);
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& v : logits)
    v = 1.5f * rng.next_normal();
  return logits;
}

SampleRow row_of(const SamplingParams& params, uint64_t seed = 1, int64_t position = 0) {
  static const TokenCounts none;
  return {.params = &params,
          .counts = &none,
          .banned = {},
          .seed = seed,
          .stream = 0,
          .position = position};
}

// The distribution by the definition, in float64, one filter after the other.
std::vector<double> exact_distribution(const std::vector<float>& logits, const SamplingParams& p) {
  const size_t n = logits.size();
  std::vector<double> probs(n);
  const double top = *std::ranges::max_element(logits);
  for (size_t v = 0; v < n; ++v) {
    probs[v] =
        std::exp((static_cast<double>(logits[v]) - top) / static_cast<double>(p.temperature));
  }
  const auto normalise = [&] {
    const double sum = std::accumulate(probs.begin(), probs.end(), 0.0);
    for (double& v : probs)
      v /= sum;
  };
  normalise();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](size_t a, size_t b) { return probs[a] > probs[b]; });
  if (p.top_k > 0) {
    for (size_t i = static_cast<size_t>(p.top_k); i < n; ++i)
      probs[order[i]] = 0.0;
    normalise();
  }
  double mass = 0.0;
  for (size_t i = 0; i < n; ++i) {
    const double before = mass;
    mass += probs[order[i]];
    if (before >= static_cast<double>(p.top_p)) probs[order[i]] = 0.0;
  }
  normalise();
  const double limit = static_cast<double>(p.min_p) * *std::ranges::max_element(probs);
  for (double& v : probs)
    v = v >= limit ? v : 0.0;
  normalise();
  return probs;
}

// Upper bound of the chi-square distribution at p = 1e-4 (Wilson and Hilferty), which is above the
// exact value for the degrees of freedom here by less than 2 %.
double chi_square_bound(double degrees) {
  const double z = 3.719;
  const double t = 1.0 - 2.0 / (9.0 * degrees) + z * std::sqrt(2.0 / (9.0 * degrees));
  return degrees * t * t * t;
}

void expect_distribution(const SamplingParams& params, uint64_t seed) {
#ifdef FATHOM_SANITIZED
  constexpr int64_t kDraws = 50'000;
#else
  constexpr int64_t kDraws = 200'000;
#endif
  constexpr int64_t kBatch = 1000;
  Fixture f;
  const std::vector<float> logits = test_logits(seed);
  const std::vector<double> expected = exact_distribution(logits, params);
  std::vector<int64_t> seen(kVocabulary, 0);
  for (int64_t begin = 0; begin < kDraws; begin += kBatch) {
    std::vector<SampleRow> rows;
    for (int64_t i = 0; i < kBatch; ++i)
      rows.push_back(row_of(params, seed, begin + i));
    const std::vector<std::vector<float>> all(kBatch, logits);
    for (const SampleResult& r : f.sample(all, rows)) {
      ASSERT_TRUE(r.finite);
      ++seen[static_cast<size_t>(r.token)];
    }
  }
  double chi_square = 0.0;
  int degrees = -1;
  for (size_t v = 0; v < expected.size(); ++v) {
    const double mean = expected[v] * static_cast<double>(kDraws);
    if (expected[v] == 0.0) {
      EXPECT_EQ(seen[v], 0) << "token " << v << " is outside the filters";
      continue;
    }
    const double off = static_cast<double>(seen[v]) - mean;
    chi_square += off * off / mean;
    ++degrees;
  }
  ASSERT_GE(degrees, 1);
  EXPECT_LT(chi_square, chi_square_bound(degrees)) << degrees << " degrees of freedom";
}

SamplingParams with(float temperature, int64_t top_k, float top_p, float min_p) {
  SamplingParams p;
  p.temperature = temperature;
  p.top_k = top_k;
  p.top_p = top_p;
  p.min_p = min_p;
  return p;
}

TEST(Sampler, DrawsFromTheSoftmax) {
  expect_distribution(with(1.0f, -1, 1.0f, 0.0f), 1);
}

TEST(Sampler, DrawsAtATemperature) {
  expect_distribution(with(0.6f, -1, 1.0f, 0.0f), 2);
  expect_distribution(with(2.0f, 0, 1.0f, 0.0f), 3);
}

TEST(Sampler, DrawsFromTheTopK) {
  expect_distribution(with(1.0f, 5, 1.0f, 0.0f), 4);
}

TEST(Sampler, DrawsFromTheTopP) {
  expect_distribution(with(0.8f, -1, 0.7f, 0.0f), 5);
}

TEST(Sampler, DrawsAboveMinP) {
  expect_distribution(with(1.5f, -1, 1.0f, 0.2f), 6);
}

TEST(Sampler, AppliesFiltersOneAfterTheOther) {
  expect_distribution(with(1.2f, 8, 0.8f, 0.1f), 7);
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheLargest) {
  Fixture f;
  const SamplingParams greedy = with(0.0f, -1, 1.0f, 0.0f);
  std::vector<float> logits = test_logits(1);
  logits[4] = logits[9] = 50.0f;

  EXPECT_EQ(f.sample({logits}, {row_of(greedy)})[0].token, 4);
}

TEST(Sampler, TopKOfOneIsGreedyWithoutTies) {
  Fixture f;
  const SamplingParams p = with(1.0f, 1, 1.0f, 0.0f);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const std::vector<float> logits = test_logits(seed);
    const auto best = std::ranges::max_element(logits) - logits.begin();

    EXPECT_EQ(f.sample({logits}, {row_of(p, seed)})[0].token, best);
  }
}

TEST(Sampler, SameSeedAndPositionGiveTheSameToken) {
  Fixture f;
  const SamplingParams p = with(1.5f, -1, 1.0f, 0.0f);
  const std::vector<float> logits = test_logits(3);
  std::map<int32_t, int> by_position;
  std::map<int32_t, int> by_seed;
  for (int64_t i = 0; i < 40; ++i) {
    const int32_t token = f.sample({logits}, {row_of(p, 7, i)})[0].token;

    EXPECT_EQ(f.sample({logits}, {row_of(p, 7, i)})[0].token, token);
    ++by_position[token];
    ++by_seed[f.sample({logits}, {row_of(p, static_cast<uint64_t>(i), 7)})[0].token];
  }
  EXPECT_GT(by_position.size(), 3u);
  EXPECT_GT(by_seed.size(), 3u);
}

// Rows of every kind, alone and among all others, in any order.
TEST(Sampler, NeighboursChangeNothing) {
  Fixture f;
  std::vector<SamplingParams> params = {with(0.0f, -1, 1.0f, 0.0f), with(1.0f, -1, 1.0f, 0.0f),
                                        with(1.0f, 3, 1.0f, 0.0f),  with(0.7f, -1, 0.9f, 0.0f),
                                        with(1.0f, -1, 1.0f, 0.3f), with(1.0f, 7, 0.6f, 0.05f)};
  for (size_t i = 0; i < 3; ++i)
    params.push_back(params[i]);
  params[6].logit_bias = {{2, 3.0f}};
  params[7].top_logprobs = 3;
  params[8].repetition_penalty = 1.7f;
  const std::vector<int32_t> prompt = {1, 2, 3};
  const TokenCounts counts(params[8], prompt, 10, kVocabulary);
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::vector<std::vector<float>> logits;
    std::vector<SampleRow> rows;
    for (size_t i = 0; i < params.size(); ++i) {
      logits.push_back(test_logits(seed * 100 + i));
      rows.push_back(row_of(params[i], seed, static_cast<int64_t>(i)));
    }
    rows[8].counts = &counts;

    const std::vector<SampleResult> together = f.sample(logits, rows);
    std::vector<int32_t> tokens;
    for (const SampleResult& r : together)
      tokens.push_back(r.token);

    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(f.sample({logits[i]}, {rows[i]})[0].token, tokens[i]) << "seed " << seed;
    }
  }
}

TEST(Sampler, NonFiniteRowsFailAlone) {
  Fixture f;
  const SamplingParams greedy = with(0.0f, -1, 1.0f, 0.0f);
  const SamplingParams drawn = with(1.0f, 5, 0.9f, 0.1f);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const SamplingParams* p : {&greedy, &drawn}) {
    std::vector<std::vector<float>> logits(5, test_logits(9));
    logits[1][0] = nan;
    logits[2][kVocabulary - 1] = kInf;
    std::ranges::fill(logits[3], -kInf);
    logits[4][3] = -kInf;  // a single banned token is fine

    const auto results = f.sample(logits, std::vector<SampleRow>(5, row_of(*p)));

    EXPECT_TRUE(results[0].finite);
    EXPECT_FALSE(results[1].finite);
    EXPECT_FALSE(results[2].finite);
    EXPECT_FALSE(results[3].finite);
    EXPECT_TRUE(results[4].finite);
    EXPECT_EQ(results[1].token, -1);
    EXPECT_EQ(results[0].token, f.sample({logits[0]}, {row_of(*p)})[0].token);
  }
}

// A penalty or a bias must not hide a NaN.
TEST(Sampler, NonFiniteRowsAreFoundBeforePenalties) {
  Fixture f;
  SamplingParams p = with(0.0f, -1, 1.0f, 0.0f);
  p.logit_bias = {{4, -100.0f}};
  std::vector<float> logits = test_logits(9);
  logits[4] = kInf;
  SampleRow row = row_of(p);
  const int32_t banned[] = {4};
  row.banned = banned;

  EXPECT_FALSE(f.sample({logits}, {row})[0].finite);
}

TEST(Sampler, PaddingIdsAreNeverChosen) {
  constexpr int64_t kIds = 20;
  Fixture f(kIds);
  std::vector<float> logits = test_logits(5);
  for (size_t v = kIds; v < kVocabulary; ++v)
    logits[v] = 100.0f + static_cast<float>(v);
  const SamplingParams greedy = with(0.0f, -1, 1.0f, 0.0f);
  const SamplingParams drawn = with(2.0f, -1, 1.0f, 0.0f);

  EXPECT_EQ(f.sample({logits}, {row_of(greedy)})[0].token,
            std::max_element(logits.begin(), logits.begin() + kIds) - logits.begin());
  for (int64_t i = 0; i < 300; ++i) {
    EXPECT_LT(f.sample({logits}, {row_of(drawn, 3, i)})[0].token, kIds);
  }
}

TEST(Sampler, BiasAndBanApplyToGreedyChoice) {
  Fixture f;
  SamplingParams p = with(0.0f, -1, 1.0f, 0.0f);
  std::vector<float> logits(kVocabulary, 0.0f);
  logits[3] = 5.0f;
  logits[6] = 4.0f;
  p.logit_bias = {{6, 2.0f}};
  SampleRow row = row_of(p);

  EXPECT_EQ(f.sample({logits}, {row})[0].token, 6);
  const int32_t banned[] = {6};
  row.banned = banned;
  EXPECT_EQ(f.sample({logits}, {row})[0].token, 3);
}

// By the definitions of the OpenAI API and of arXiv 1909.05858.
TEST(Sampler, PenaltiesFollowTheirDefinitions) {
  Fixture f;
  SamplingParams p = with(0.0f, -1, 1.0f, 0.0f);
  p.repetition_penalty = 2.0f;
  p.frequency_penalty = 0.5f;
  p.presence_penalty = 0.25f;
  p.top_logprobs = 20;
  const std::vector<int32_t> prompt = {1, 2};
  TokenCounts counts(p, prompt, 10, kVocabulary);
  for (int32_t token : {2, 3, 3})
    counts.add(token);
  std::vector<float> logits(kVocabulary, -30.0f);
  // token 1: prompt only, 8/2 = 4; 2: 8/2 - 0.5 - 0.25 = 3.25; 3: 8/2 - 1 - 0.25 = 2.75;
  // token 4: untouched, 3.9; 5: negative logits are multiplied elsewhere
  logits[1] = logits[2] = logits[3] = 8.0f;
  logits[4] = 3.9f;
  SampleRow row = row_of(p);
  row.counts = &counts;
  EXPECT_EQ(f.sample({logits}, {row})[0].token, 1);
  logits[4] = 4.1f;
  EXPECT_EQ(f.sample({logits}, {row})[0].token, 4);
  logits[1] = -1.0f;  // -2 behind the penalty
  logits[4] = 3.0f;
  EXPECT_EQ(f.sample({logits}, {row})[0].token, 2);
  logits[4] = 3.3f;
  EXPECT_EQ(f.sample({logits}, {row})[0].token, 4);
}

TEST(Sampler, LogprobsAreThoseOfTheRawLogits) {
  Fixture f;
  SamplingParams p = with(0.5f, 4, 0.9f, 0.0f);
  p.top_logprobs = 5;
  p.logit_bias = {{7, 40.0f}};
  const std::vector<float> logits = test_logits(11);
  double sum = 0.0;
  for (float v : logits)
    sum += std::exp(static_cast<double>(v));
  std::vector<int32_t> order(kVocabulary);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });

  const SampleResult r = f.sample({logits}, {row_of(p)})[0];

  EXPECT_EQ(r.token, 7);
  EXPECT_NEAR(r.logprob, static_cast<double>(logits[7]) - std::log(sum), 1e-6);
  ASSERT_EQ(r.top_logprobs.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(r.top_logprobs[i].token, order[i]);
    EXPECT_NEAR(r.top_logprobs[i].logprob,
                static_cast<double>(logits[static_cast<size_t>(order[i])]) - std::log(sum), 1e-6);
  }
}

TEST(Sampler, ZeroTopLogprobsGiveTheChosenOneOnly) {
  Fixture f;
  SamplingParams p = with(0.0f, -1, 1.0f, 0.0f);
  p.top_logprobs = 0;

  const SampleResult r = f.sample({test_logits(2)}, {row_of(p)})[0];

  EXPECT_LT(r.logprob, 0.0f);
  EXPECT_TRUE(r.top_logprobs.empty());
}

TEST(TokenCounts, ListsEachTokenOnce) {
  SamplingParams p;
  p.repetition_penalty = 1.1f;
  const std::vector<int32_t> prompt = {5, 3, 5};
  TokenCounts counts(p, prompt, 4, 10);
  for (int32_t token : {3, 9, 9})
    counts.add(token);

  EXPECT_TRUE(std::ranges::equal(counts.tokens(), std::vector<int32_t>{5, 3, 9}));
  EXPECT_TRUE(std::ranges::equal(counts.counts(), std::vector<int32_t>{0, 1, 2}));
}

TEST(TokenCounts, LeavesThePromptOutWithoutRepetitionPenalty) {
  SamplingParams p;
  p.frequency_penalty = 1.0f;
  const std::vector<int32_t> prompt = {5, 3, 5};
  TokenCounts counts(p, prompt, 4, 10);
  counts.add(3);

  EXPECT_TRUE(std::ranges::equal(counts.tokens(), std::vector<int32_t>{3}));
}

TEST(TokenCounts, CostsNothingWithoutPenalties) {
  const std::vector<int32_t> prompt = {5};
  TokenCounts counts(SamplingParams{}, prompt, 4, 10);
  counts.add(3);

  EXPECT_TRUE(counts.tokens().empty());
}

}  // namespace
}  // namespace fathom
