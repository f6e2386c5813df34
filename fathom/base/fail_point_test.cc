#include "fathom/base/fail_point.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace fathom {
namespace {

using ::testing::HasSubstr;
using Decision = FailPlan::Decision;

std::string visits(std::string_view text, std::string_view point, int count) {
  Result<FailPlan> plan = FailPlan::parse(text);
  FATHOM_CHECK(plan.ok(), plan.status().message());
  std::string decisions;
  for (int i = 0; i < count; ++i) {
    const Decision decision = plan->visit(point);
    decisions += decision == Decision::kPass ? '.' : decision == Decision::kFail ? 'F' : 'K';
  }
  return decisions;
}

TEST(FailPlan, PassesEverythingWhenEmpty) {
  EXPECT_EQ(visits("", "read", 5), ".....");
}

TEST(FailPlan, FailsAlwaysOrNeverAtTheEndsOfProbability) {
  EXPECT_EQ(visits("read:fail:1:0", "read", 5), "FFFFF");
  EXPECT_EQ(visits("read:fail:0:0", "read", 5), ".....");
  EXPECT_EQ(visits("read:kill:1:0", "read", 2), "KK");
}

TEST(FailPlan, LeavesOtherPointsAlone) {
  EXPECT_EQ(visits("read:fail:1:0", "reads", 3), "...");
  EXPECT_EQ(visits("read:fail:1:0", "rea", 3), "...");
}

TEST(FailPlan, HitsTheNthVisitOnly) {
  EXPECT_EQ(visits("alloc:fail_nth:3:0", "alloc", 6), "..F...");
  EXPECT_EQ(visits("alloc:kill_nth:1:0", "alloc", 3), "K..");
}

TEST(FailPlan, CountsAllPointsTogetherForTheStar) {
  Result<FailPlan> plan = FailPlan::parse("*:fail_nth:2:0");
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->visit("a"), Decision::kPass);
  EXPECT_EQ(plan->visit("b"), Decision::kFail);
  EXPECT_EQ(plan->visit("a"), Decision::kPass);
}

TEST(FailPlan, TheFirstEntryThatHitsDecidesAndAllCount) {
  EXPECT_EQ(visits("a:fail_nth:2:0,a:kill_nth:2:0,a:kill_nth:4:0", "a", 5), ".F.K.");
}

TEST(FailPlan, RepeatsItsDecisionsForTheSameSeedAndHitsAsOftenAsAsked) {
  const std::string first = visits("p:fail:0.25:9", "p", 20000);
  EXPECT_EQ(first, visits("p:fail:0.25:9", "p", 20000));
  EXPECT_NE(first, visits("p:fail:0.25:10", "p", 20000));
  const auto hits = std::count(first.begin(), first.end(), 'F');
  EXPECT_NEAR(static_cast<double>(hits), 5000.0, 5 * 61.2) << "five standard deviations";
}

TEST(FailPlan, RefusesWhatItCannotReadAndQuotesIt) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {{"read", "four fields"},
               {"read:fail:1", "four fields"},
               {"read:fail:1:0:0", "four fields"},
               {":fail:1:0", "a name"},
               {"read:explode:1:0", "the action"},
               {"read:fail:1.5:0", "a probability"},
               {"read:fail:-0.1:0", "a probability"},
               {"read:fail:nan:0", "a probability"},
               {"read:fail::0", "a probability"},
               {"read:fail:0.5x:0", "a probability"},
               {"read:fail_nth:0:0", "a visit number"},
               {"read:fail_nth:0.5:0", "a visit number"},
               {"read:fail:1:-1", "a seed"},
               {"read:fail:1:", "a seed"},
               {"read:fail:1:0,", "an entry after the last comma"},
               {",read:fail:1:0", "four fields"}};

  for (const auto& [text, expected] : cases) {
    const Result<FailPlan> plan = FailPlan::parse(text);
    ASSERT_FALSE(plan.ok()) << text;
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(plan.status().message(), HasSubstr(expected)) << text;
  }
}

#ifdef FATHOM_FAILPOINTS

// Each test below runs the macro in a child process, since the plan is read once per process.

TEST(FailPointDeathTest, FailsAsTheEnvironmentSays) {
  const auto run = [] {
    setenv("FATHOM_FAIL", "b:fail_nth:2:0", 1);
    const bool as_planned = !FATHOM_FAIL_POINT("b") && FATHOM_FAIL_POINT("b") &&
                            !FATHOM_FAIL_POINT("b") && !FATHOM_FAIL_POINT("a");
    std::_Exit(as_planned ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST(FailPointDeathTest, KillsTheProcessWithoutCleaningUp) {
  const auto run = [] {
    setenv("FATHOM_FAIL", "b:kill:1:0", 1);
    (void)FATHOM_FAIL_POINT("b");
  };
  EXPECT_EXIT(run(), ::testing::KilledBySignal(SIGKILL), "");
}

TEST(FailPointDeathTest, AbortsOnAMalformedPlan) {
  const auto run = [] {
    setenv("FATHOM_FAIL", "b:maybe:1:0", 1);
    (void)FATHOM_FAIL_POINT("b");
  };
  EXPECT_DEATH(run(), "b:maybe:1:0");
}

#else

TEST(FailPoint, IsTheConstantFalseWithoutFailPoints) {
  static_assert(!FATHOM_FAIL_POINT("anything"));
}

#endif

}  // namespace
}  // namespace fathom
