#include "fathom/kernels/embed/embedding/embedding.h"

#include <gtest/gtest.h>

#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

TEST(Embed, CopiesRowsInTheOrderOfTheIds) {
  TestExec ex;
  const TestTensor table({3, 2}, Format::kBf16, {0, 1, 10, 11, 20, 21});
  const TestTensor ids({4}, Format::kI32, {2, 0, 2, 1});
  const TestTensor y({4, 2}, Format::kF32, -1.0f);

  FATHOM_EXPECT_OK(
      launch<Embed>(*ex, "test", {.ids = ids.view(), .table = table.view(), .y = y.view()}));

  EXPECT_EQ(y.values(), (std::vector<float>{20, 21, 0, 1, 20, 21, 10, 11}));
}

TEST(Embed, RefusesIdsOutsideTheTable) {
  TestExec ex;
  const TestTensor table({3, 2}, Format::kBf16);
  const TestTensor y({2, 2}, Format::kBf16);
  for (float bad : {3.0f, -1.0f}) {
    const TestTensor ids({2}, Format::kI32, {0, bad});

    const Status status =
        launch<Embed>(*ex, "test", {.ids = ids.view(), .table = table.view(), .y = y.view()});

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("the table has rows 0..2"), std::string::npos)
        << status.message();
  }
}

TEST(Embed, CountsTheRowsItReadsAndNotTheTable) {
  const TestTensor table({1000, 8}, Format::kBf16);
  const TestTensor ids({3}, Format::kI32, 0.0f);
  const TestTensor y({3, 8}, Format::kBf16);

  const Cost cost = cost_of<Embed>({.ids = ids.view(), .table = table.view(), .y = y.view()});

  EXPECT_EQ(cost.bytes_read, 3 * 8 * 2 + 3 * 4);
  EXPECT_EQ(cost.bytes_written, 3 * 8 * 2);
}

}  // namespace
}  // namespace fathom
