#include "fathom/os/clock.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Clock, MonotonicClockNeverGoesBack) {
  const MonotonicClock clock;
  int64_t last = clock.now_ns();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, ManualClockMovesOnlyWhenTold) {
  ManualClock clock(5);
  const Clock& seen = clock;
  EXPECT_EQ(seen.now_ns(), 5);
  EXPECT_EQ(seen.now_ns(), 5);
  clock.advance_ns(37);
  EXPECT_EQ(seen.now_ns(), 42);
}

}  // namespace
}  // namespace fathom
