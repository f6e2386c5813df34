#include "fathom/runtime/draft/draft_balance.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

// Steps of `base` ns and `slope` ns a token, as a run with and without drafts has them.
DraftBalance measured(int64_t base, int64_t slope, int64_t guess = 0) {
  DraftBalance balance;
  for (int i = 0; i < 40; ++i) {
    for (const int64_t tokens : {1, 4, 2, 8})
      balance.add_step(tokens, base + slope * tokens);
    if (guess > 0) balance.add_guessing(2, 2 * guess);
  }
  return balance;
}

TEST(DraftBalance, KnowsNothingWithoutStepsOfTwoKinds) {
  DraftBalance balance;
  EXPECT_TRUE(balance.gains(0.0, 4.0, 1));
  for (int i = 0; i < 100; ++i)
    balance.add_step(4, 1000);
  EXPECT_TRUE(balance.gains(0.0, 4.0, 1));
  EXPECT_EQ(balance.largest_batch(0.5, 4.0), std::nullopt);
}

TEST(DraftBalance, ADraftMustSaveMoreThanItTakes) {
  // A step of one sequence takes 1000; three drafts take 300 more, so they must save 0.3 of a step.
  const DraftBalance balance = measured(900, 100);
  EXPECT_TRUE(balance.gains(0.31, 3.0, 1));
  EXPECT_FALSE(balance.gains(0.29, 3.0, 1));
}

TEST(DraftBalance, GuessingCountsAsWell) {
  // 300 for the tokens and 200 for the guesses.
  const DraftBalance balance = measured(900, 100, 200);
  EXPECT_TRUE(balance.gains(0.51, 3.0, 1));
  EXPECT_FALSE(balance.gains(0.49, 3.0, 1));
}

TEST(DraftBalance, NothingGainsBeyondABatch) {
  // 0.5 (900 + 100 B) > B 300 below 2.25 sequences.
  const DraftBalance balance = measured(900, 100);
  EXPECT_TRUE(balance.gains(0.5, 3.0, 1));
  EXPECT_EQ(balance.largest_batch(0.5, 3.0), 1);
  for (int64_t batch = 1; batch <= 20; ++batch) {
    EXPECT_EQ(balance.gains(1.5, 3.0, batch), batch <= *balance.largest_batch(1.5, 3.0)) << batch;
  }
}

TEST(DraftBalance, DraftsThatAllComeOutAndCostNothingAlwaysGain) {
  EXPECT_EQ(measured(900, 100).largest_batch(3.0, 3.0), std::nullopt);
  EXPECT_TRUE(measured(900, 100).gains(3.0, 3.0, 1'000'000));
}

TEST(DraftBalance, ForgetsWhatStepsTookLongAgo) {
  DraftBalance balance = measured(900, 100);
  for (int i = 0; i < 1000; ++i) {
    for (const int64_t tokens : {1, 4})
      balance.add_step(tokens, 1000 * tokens);
  }
  EXPECT_FALSE(balance.gains(2.9, 3.0, 1));
}

TEST(DraftBalance, LooksAtPlainStepsNowAndThen) {
  DraftBalance balance;
  EXPECT_TRUE(balance.wants_plain_step());
  balance.count_step(true);
  balance.count_step(true);
  EXPECT_FALSE(balance.wants_plain_step());
  for (int i = 0; i < 63; ++i)
    balance.count_step(false);
  EXPECT_FALSE(balance.wants_plain_step());
  balance.count_step(false);
  EXPECT_TRUE(balance.wants_plain_step());
  balance.count_step(true);
  EXPECT_FALSE(balance.wants_plain_step());
}

TEST(DraftGain, MeansFollowWhatCameOut) {
  DraftGain gain;
  for (int i = 0; i < 7; ++i)
    gain.add(4, 2);
  EXPECT_FALSE(gain.is_known());
  gain.add(4, 2);
  EXPECT_TRUE(gain.is_known());
  EXPECT_DOUBLE_EQ(gain.drafted(), 4);
  EXPECT_DOUBLE_EQ(gain.accepted(), 2);
  for (int i = 0; i < 200; ++i)
    gain.add(3, 0);
  EXPECT_NEAR(gain.accepted(), 0, 1e-3);
  gain.start_again();
  EXPECT_FALSE(gain.is_known());
}

}  // namespace
}  // namespace fathom
