#include "fathom/report/files/trace_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::HasSubstr;

OpRow row(int64_t index, const char* op, double us) {
  OpRow out;
  out.level = TraceLevel::kProbed;
  out.phase = "decode";
  out.index = index;
  out.scope = "model";
  out.op = op;
  out.kernel = "k";
  out.variant = "v";
  out.inputs = "x [1, 4]";
  out.outputs = "y [1, 4]";
  out.start_us = static_cast<double>(index);
  out.us = us;
  out.written = {"y"};
  out.statistics = {{-1, 2, 0.5, 3, 0}};
  return out;
}

std::vector<OpRow> trace() {
  return {row(0, "a", 10), row(1, "b", 20), row(2, "c", 30)};
}

TEST(TraceDiff, EqualTracesDoNotDiffer) {
  const TraceDifference d = diff_traces(trace(), trace(), {});

  EXPECT_FALSE(d.failed({}));
  EXPECT_EQ(d.compared_values, 3);
  EXPECT_THAT(write_trace_diff(d, {}, "a", "b"), HasSubstr("None."));
}

TEST(TraceDiff, FirstOpWithAnotherKernelIsNamed) {
  auto b = trace();
  b[1].kernel = "other";
  b[2].kernel = "other";

  const TraceDifference d = diff_traces(trace(), b, {});

  ASSERT_EQ(d.shape.size(), 1u);
  EXPECT_EQ(d.shape[0].op, "b");
  EXPECT_EQ(d.shape[0].index, 1);
  EXPECT_EQ(d.shape[0].what, "kernel: k in A, other in B");
  EXPECT_TRUE(d.failed({}));
}

TEST(TraceDiff, OtherSizesAreADifference) {
  auto b = trace();
  b[2].inputs = "x [1, 8]";

  EXPECT_EQ(diff_traces(trace(), b, {}).shape.at(0).what, "reads: x [1, 4] in A, x [1, 8] in B");
}

TEST(TraceDiff, AnotherVariantIsToldAndDoesNotFail) {
  auto b = trace();
  b[1].variant = "w";

  const TraceDifference d = diff_traces(trace(), b, {});

  EXPECT_EQ(d.variants, 1);
  EXPECT_FALSE(d.failed({}));
}

TEST(TraceDiff, ValuesBeyondTheToleranceAreNamedInOrder) {
  auto b = trace();
  b[1].statistics[0].l2 = 3.2;
  b[2].statistics[0].max = 9;

  const TraceDifference d = diff_traces(trace(), b, {.tolerance = 0.02});

  ASSERT_EQ(d.values.size(), 2u);
  EXPECT_EQ(d.values[0].op, "b");
  EXPECT_THAT(d.values[0].what, HasSubstr("y: l2 is 3 in A, 3.2 in B"));
  EXPECT_TRUE(d.failed({}));
  EXPECT_TRUE(diff_traces(trace(), b, {.tolerance = 1}).values.empty());
}

TEST(TraceDiff, NumbersThatAreNotFiniteAreADifference) {
  auto b = trace();
  b[0].statistics[0].non_finite = 1;

  EXPECT_THAT(diff_traces(trace(), b, {}).values.at(0).what,
              HasSubstr("0 numbers are not finite in A, 1 in B"));
}

TEST(TraceDiff, SlowerOpsFailBeyondTheThreshold) {
  auto b = trace();
  b[2].us = 36;

  const TraceDifference d = diff_traces(trace(), b, {});

  EXPECT_TRUE(d.failed({.fail_slower = 0.10}));
  EXPECT_FALSE(d.failed({.fail_slower = 0.25}));
  EXPECT_EQ(d.times.front().op, "c");
  EXPECT_DOUBLE_EQ(d.times.front().ratio(), 1.2);
  EXPECT_DOUBLE_EQ(d.times.front().share, 0.5);
}

TEST(TraceDiff, OpsTooSmallToJudgeDoNotFail) {
  auto a = trace();
  auto b = trace();
  a[0].us = 0.01;
  b[0].us = 1;

  EXPECT_FALSE(diff_traces(a, b, {}).failed({}));
}

TEST(TraceDiff, RowsOfOneSideAloneAreADifference) {
  auto b = trace();
  b.pop_back();

  const TraceDifference d = diff_traces(trace(), b, {});

  ASSERT_EQ(d.shape.size(), 1u);
  EXPECT_EQ(d.shape[0].op, "c");
  EXPECT_THAT(d.shape[0].what, HasSubstr("only in A, which has 3 rows; the other has 2"));
}

TEST(TraceDiff, PhaseOfOneSideAloneIsADifference) {
  auto b = trace();
  for (OpRow& r : b)
    r.phase = "prefill";

  const TraceDifference d = diff_traces(trace(), b, {});

  EXPECT_EQ(d.shape.size(), 2u);
}

}  // namespace
}  // namespace fathom
