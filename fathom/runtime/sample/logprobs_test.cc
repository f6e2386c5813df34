// Log-probabilities from what top_logprobs finds, against those from raw logits.
#include "fathom/runtime/sample/logprobs.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/sample/top_logprobs/top_logprobs.h"

namespace fathom {
namespace {

constexpr int64_t kVocabulary = 50;

SampleRow row_of(const SamplingParams& params) {
  return {.params = &params};
}

TEST(BestTokens, AreEnoughUnlessTheLogitOfTheTokenChangesOrItsRankIsAskedFor) {
  SamplingParams p = greedy_sampling();
  EXPECT_FALSE(needs_best_tokens(row_of(p)));
  EXPECT_FALSE(needs_raw_logits(row_of(p)));

  p.top_logprobs = 0;
  EXPECT_TRUE(needs_best_tokens(row_of(p)));
  EXPECT_FALSE(needs_raw_logits(row_of(p)));
  const int32_t ends[] = {3};
  const uint32_t mask[] = {~0u, ~0u};
  EXPECT_TRUE(needs_best_tokens({.params = &p, .banned = ends, .mask = mask}));

  EXPECT_TRUE(needs_raw_logits({.params = &p, .scored = 4}));
  EXPECT_FALSE(needs_best_tokens({.params = &p, .scored = 4}));
  SamplingParams penalised = p;
  penalised.presence_penalty = 0.5f;
  EXPECT_TRUE(needs_raw_logits(row_of(penalised)));
  SamplingParams biased = p;
  biased.logit_bias.emplace_back(4, 0.0f);
  EXPECT_TRUE(needs_raw_logits(row_of(biased)));
  EXPECT_FALSE(needs_best_tokens(row_of(biased)));
}

// Rows with tokens among the best and with others; each token is "drawn" once.
TEST(BestTokens, GiveWhatRawLogitsGive) {
  constexpr int64_t kRows = kVocabulary;
  constexpr int64_t kBest = 8;
  TestExec exec(2);
  Rng rng(9);
  std::vector<float> logits(static_cast<size_t>(kRows * kVocabulary));
  for (float& z : logits)
    z = 4.0f * rng.next_normal() + 20.0f;
  std::vector<int32_t> ids(static_cast<size_t>(kRows * kBest));
  std::vector<float> logprobs(ids.size());
  std::vector<float> largest(static_cast<size_t>(kRows));
  FATHOM_EXPECT_OK(
      launch<TopLogprobs>(*exec, "sample_logprobs",
                          {.logits = make_view(logits.data(), {kRows, kVocabulary}, Format::kF32),
                           .ids = make_view(ids.data(), {kRows, kBest}, Format::kI32),
                           .logprobs = make_view(logprobs.data(), {kRows, kBest}, Format::kF32),
                           .largest = make_view(largest.data(), {kRows}, Format::kF32)}));
  SamplingParams p = greedy_sampling();
  p.top_logprobs = 5;
  const std::vector<SampleRow> rows(static_cast<size_t>(kRows), row_of(p));
  std::vector<const float*> raw;
  std::vector<SampleResult> expected;
  for (int64_t i = 0; i < kRows; ++i) {
    raw.push_back(logits.data() + i * kVocabulary);
    expected.push_back({.token = static_cast<int32_t>(i), .finite = true, .top_logprobs = {}});
  }
  std::vector<SampleResult> found = expected;
  Logprobs from_raw(kRows);
  from_raw.add(*(*exec).pool, raw, kVocabulary, rows, expected);

  Logprobs from_best(kRows);
  const BestTokens best{.count = kBest, .ids = ids, .logprobs = logprobs, .largest = largest};
  int64_t others = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (from_best.add_best(best, i, rows[i], found[i])) continue;
    Logprobs::set_logprob(best, i, raw[i][found[i].token], found[i]);
    ++others;
  }

  EXPECT_GT(others, kRows / 2);
  EXPECT_LT(others, kRows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NEAR(found[i].logprob, expected[i].logprob, 4e-6) << i;
    ASSERT_EQ(found[i].top_logprobs.size(), 5u);
    for (size_t k = 0; k < 5; ++k) {
      EXPECT_EQ(found[i].top_logprobs[k].token, expected[i].top_logprobs[k].token) << i;
      EXPECT_EQ(found[i].top_logprobs[k].logprob, expected[i].top_logprobs[k].logprob) << i;
    }
  }
}

TEST(BestTokens, AreNoMoreThanThereAre) {
  const std::vector<int32_t> ids{1, 0};
  const std::vector<float> logprobs{-0.25f, -1.5f};
  const std::vector<float> largest{3.0f};
  const BestTokens best{.count = 2, .ids = ids, .logprobs = logprobs, .largest = largest};
  SamplingParams p = greedy_sampling();
  p.top_logprobs = 20;
  Logprobs kept(1);
  SampleResult result{.token = 0, .finite = true, .top_logprobs = {}};

  EXPECT_TRUE(kept.add_best(best, 0, row_of(p), result));

  EXPECT_EQ(result.logprob, -1.5f);
  ASSERT_EQ(result.top_logprobs.size(), 2u);
  EXPECT_EQ(result.top_logprobs[0].token, 1);
}

}  // namespace
}  // namespace fathom
