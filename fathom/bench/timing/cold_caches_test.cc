#include "fathom/bench/timing/cold_caches.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(ColdPlan, CopiesTogetherExceedTheCacheTwice) {
  for (int64_t touched : {int64_t{100} << 10, kMiB, 7 * kMiB, 31 * kMiB, 33 * kMiB}) {
    const ColdPlan plan = cold_plan(touched, touched, 32 * kMiB);

    EXPECT_FALSE(plan.sweep) << touched;
    EXPECT_GE(plan.copies * touched, 64 * kMiB) << touched;
    EXPECT_LE((plan.copies - 2) * touched, 64 * kMiB) << "more than needed: " << touched;
  }
}

TEST(ColdPlan, ACallThatFillsTheCacheTwiceNeedsNoSecondCopy) {
  EXPECT_EQ(cold_plan(64 * kMiB, 64 * kMiB, 32 * kMiB).copies, 1);
  EXPECT_FALSE(cold_plan(64 * kMiB, 64 * kMiB, 32 * kMiB).sweep);
}

TEST(ColdPlan, ASmallPartOfALargeOperandIsSweptOut) {
  const ColdPlan plan = cold_plan(kMiB, 75 * kMiB, 32 * kMiB);

  EXPECT_TRUE(plan.sweep);
  EXPECT_EQ(plan.copies, 1);
}

TEST(ColdPlan, TinyCallsGetNoMoreThan4096Copies) {
  EXPECT_EQ(cold_plan(100, 300, 32 * kMiB).copies, 4096);
  EXPECT_EQ(cold_plan(0, 0, 32 * kMiB).copies, 4096);
}

TEST(CacheSweep, RunsOnAnyNumberOfThreads) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads, PinThreads::kNo);
    CacheSweep sweep;

    EXPECT_TRUE(sweep.run(pool).ok());
    EXPECT_TRUE(sweep.run(pool).ok());
  }
}

}  // namespace
}  // namespace fathom
