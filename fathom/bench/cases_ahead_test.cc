#include "fathom/bench/cases_ahead.h"

#include <array>
#include <atomic>
#include <chrono>
#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr size_t kBegin = 3;
constexpr size_t kCases = 9;

/// Cases of a kernel, of which each tells how often it was made.
struct Made {
  std::vector<const Case*> cases = all_cases().of("rmsnorm");
  std::array<std::atomic<int>, kCases> times{};

  CasesAhead::Make make() {
    return [this](size_t index) {
      ++times[index - kBegin];
      return cases[index]->make(1);
    };
  }

  int all() const {
    int sum = 0;
    for (const std::atomic<int>& t : times)
      sum += t;
    return sum;
  }
};

class CasesAheadOf : public testing::TestWithParam<int> {};

TEST_P(CasesAheadOf, GiveEachCaseThatIsTakenAndMakeNoneTwice) {
  Made made;
  {
    CasesAhead cases(kBegin, kBegin + kCases, GetParam(), made.make());
    for (const size_t i : {0, 1, 4, 5, 8}) {
      const std::unique_ptr<CaseInstance> taken = cases.take(kBegin + i);
      ASSERT_NE(taken, nullptr);
      EXPECT_EQ(taken->shape(), made.cases[kBegin + i]->make(1)->shape());
    }
  }
  for (const size_t i : {0, 1, 4, 5, 8})
    EXPECT_EQ(made.times[i], 1) << i;
  for (const std::atomic<int>& t : made.times)
    EXPECT_LE(t, 1);
  if (GetParam() == 0) {
    EXPECT_EQ(made.all(), 5);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, CasesAheadOf, testing::Values(0, 1, 4, 20));

TEST(CasesAhead, MakeNoMoreAheadThanThereAreThreads) {
  Made made;
  CasesAhead cases(kBegin, kBegin + kCases, 2, made.make());
  ASSERT_NE(cases.take(kBegin), nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LE(made.all(), 3);
  ASSERT_NE(cases.take(kBegin + kCases - 1), nullptr);
}

}  // namespace
}  // namespace fathom
