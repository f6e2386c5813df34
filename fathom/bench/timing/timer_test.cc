#include "fathom/bench/timing/timer.h"

#include <gtest/gtest.h>
#include <vector>

namespace fathom {
namespace {

/// A function that takes the microseconds it is told, on a clock that stands still otherwise.
class TimerTest : public testing::Test {
 protected:
  template <class MicrosOfCall>
  Result<Timing> time(MicrosOfCall us, const TimerOptions& options = {}) {
    calls = 0;
    return time_calls(
        [&](int64_t call) {
          EXPECT_EQ(call, calls);
          ++calls;
          clock.advance_ns(static_cast<int64_t>(us(call) * 1000));
          return Status{};
        },
        options, clock);
  }

  ManualClock clock;
  int64_t calls = 0;
};

TEST_F(TimerTest, ConstantTimeIsItsMedianAndSettlesAtOnce) {
  const Timing t = time([](int64_t) { return 100.0; }).value();

  EXPECT_TRUE(t.settled);
  EXPECT_FALSE(t.unstable());
  EXPECT_DOUBLE_EQ(t.median_us, 100);
  EXPECT_NEAR(t.mean_us, 100, 1e-9);
  EXPECT_EQ(t.group, 1);
}

TEST_F(TimerTest, MeasuresAtLeastSoManyRunsAndSoLong) {
  EXPECT_EQ(time([](int64_t) { return 100.0; }).value().reps, 2000);     // 200 ms
  EXPECT_EQ(time([](int64_t) { return 10'000.0; }).value().reps, 50);    // 0.5 s
  EXPECT_EQ(time([](int64_t) { return 100'000.0; }).value().reps, 20);   // 2 s are enough
  EXPECT_EQ(time([](int64_t) { return 3'000'000.0; }).value().reps, 3);  // but three at least
}

TEST_F(TimerTest, ShortCallsAreTimedInGroups) {
  const Timing t = time([](int64_t) { return 0.5; }).value();

  EXPECT_EQ(t.group, 40);
  EXPECT_DOUBLE_EQ(t.median_us, 0.5);
}

TEST_F(TimerTest, SlowFirstCallsDoNotCount) {
  const Timing t =
      time([](int64_t call) { return call < 12 ? 900.0 - 40.0 * double(call) : 100.0; }).value();

  EXPECT_DOUBLE_EQ(t.max_us, 100);
}

TEST_F(TimerTest, GivesUpWarmingUpWhereTimesNeverAgree) {
  const Timing t =
      time([&](int64_t call) { return 1000.0 * static_cast<double>(1 + call / 5 % 2); }).value();

  EXPECT_FALSE(t.settled);
  EXPECT_TRUE(t.unstable());
}

TEST_F(TimerTest, WarmUpIsShortWhereTheMeasurementIs) {
  // Times that never agree: only the limit ends the warm-up.
  (void)time([](int64_t call) { return 1000.0 * static_cast<double>(1 + call / 5 % 2); },
             {.min_reps = 3, .min_time_s = 0.01});

  EXPECT_LE(clock.now_ns(), 70'000'000);
}

TEST_F(TimerTest, ALongCallIsItsOwnWarmUp) {
  const Timing t = time([](int64_t) { return 1'500'000.0; }, {.min_reps = 3}).value();

  EXPECT_EQ(calls, 4) << "one to warm up and three to measure";
  EXPECT_TRUE(t.settled);
}

TEST_F(TimerTest, QuantilesAreThoseOfTheSamples) {
  const Timing t =
      time([](int64_t call) { return call % 10 == 0 ? 200.0 : 100.0; }, {.max_warm_up_s = 0})
          .value();

  EXPECT_DOUBLE_EQ(t.median_us, 100);
  EXPECT_DOUBLE_EQ(t.p10_us, 100);
  EXPECT_NEAR(t.mean_us, 110, 1);
  EXPECT_DOUBLE_EQ(t.max_us, 200);
}

TEST_F(TimerTest, WhatRunsBeforeASampleIsNotTimed) {
  const Timing t = time_calls(
                       [&](int64_t) {
                         clock.advance_ns(2'000);
                         return Status{};
                       },
                       {}, clock, [&] { clock.advance_ns(3'000'000); })
                       .value();

  EXPECT_DOUBLE_EQ(t.median_us, 2);
  EXPECT_EQ(t.group, 1);
}

TEST_F(TimerTest, FirstErrorEndsIt) {
  int64_t count = 0;
  const Result<Timing> t = time_calls(
      [&](int64_t) { return ++count == 3 ? internal_error("third call") : Status{}; }, {}, clock);

  EXPECT_EQ(t.status().message(), "third call");
  EXPECT_EQ(count, 3);
}

TEST(Quantile, IsLinearBetweenNeighbours) {
  const std::vector<double> v = {1, 2, 4};

  EXPECT_DOUBLE_EQ(quantile(v, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(v, 0.25), 1.5);
  EXPECT_DOUBLE_EQ(quantile(v, 0.5), 2);
  EXPECT_DOUBLE_EQ(quantile(v, 0.75), 3);
  EXPECT_DOUBLE_EQ(quantile(v, 1), 4);
}

}  // namespace
}  // namespace fathom
