#include "fathom/kernels/sparse/topk_rows/topk_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/sparse/topk_rows/topk_plan.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class TopkRowsTest : public testing::Test {
 protected:
  static View ints(std::vector<int32_t>& v) {
    return make_view(v.data(), {static_cast<int64_t>(v.size())}, Format::kI32);
  }

  std::vector<int32_t> best(std::string_view variant, std::vector<float> scores, int64_t k) {
    const auto columns = static_cast<int64_t>(scores.size());
    std::vector<int32_t> lengths = {static_cast<int32_t>(columns)};
    std::vector<int32_t> ids(static_cast<size_t>(k), -7);
    FATHOM_EXPECT_OK(
        launch<TopkRows>(exec.with("topk_rows", variant), "index_topk",
                         {.scores = make_view(scores.data(), {1, columns}, Format::kF32),
                          .lengths = ints(lengths),
                          .ids = make_view(ids.data(), {1, k}, Format::kI32)}));
    return ids;
  }

  TestExec exec;
};

TEST_F(TopkRowsTest, TakesTheFirstOfEqualScores) {
  for (const std::string& variant : variants_of<TopkRows>()) {
    EXPECT_EQ(best(variant, {5, 1, 5, 5, 9, 5}, 3), (std::vector<int32_t>{0, 2, 4}));
    EXPECT_EQ(best(variant, std::vector<float>(100, 2.0f), 4), (std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_EQ(best(variant, std::vector<float>(9000, -kInf), 4),
              (std::vector<int32_t>{0, 1, 2, 3}));
  }
}

TEST_F(TopkRowsTest, OrdersSpecialValuesByTheirBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> scores = {-nan, -kInf, -1, -0.0f, 0.0f, 1, kInf, nan};
  for (const std::string& variant : variants_of<TopkRows>()) {
    for (int32_t k = 1; k < 8; ++k) {
      std::vector<int32_t> expected;
      for (int32_t i = 8 - k; i < 8; ++i)
        expected.push_back(i);
      EXPECT_EQ(best(variant, scores, k), expected) << variant << " " << k;
    }
  }
}

TEST_F(TopkRowsTest, AnyBitsGivePositionsInOrderWithoutRepeats) {
  Rng rng(11);
  std::vector<float> scores(10000);
  for (float& s : scores)
    s = float_from_bits(rng.next_u32());
  const std::vector<int32_t> expected = best("portable", scores, 512);
  for (const std::string& variant : variants_of<TopkRows>()) {
    const std::vector<int32_t> ids = best(variant, scores, 512);
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
    EXPECT_GE(ids.front(), 0);
    EXPECT_LT(ids.back(), 10000);
    EXPECT_EQ(ids, expected) << variant;
  }
}

TEST_F(TopkRowsTest, SlotsOfPaddingRowsWithoutARequestAreNone) {
  std::vector<float> scores(3 * 4, 1.0f);
  std::vector<int32_t> lengths = {4, 2, 0}, begins = {0, 2}, table = {40, 41, 42, 43};
  std::vector<int32_t> slots(6);
  FATHOM_EXPECT_OK(
      launch<TopkRowsPaged>(*exec, "index_topk",
                            {.scores = make_view(scores.data(), {3, 4}, Format::kF32),
                             .lengths = ints(lengths),
                             .page_table = make_view(table.data(), {1, 4}, Format::kI32),
                             .cu_seqlens_q = ints(begins),
                             .slots = make_view(slots.data(), {3, 2}, Format::kI32)}));

  EXPECT_EQ(slots, (std::vector<int32_t>{40, 41, 40, 41, -1, -1}));
}

TEST_F(TopkRowsTest, RefusesWhatLeavesItsRow) {
  std::vector<float> scores(2 * 4);
  std::vector<int32_t> lengths = {4, 4}, starts = {0, 0}, begins = {0, 1, 2}, ids(4);
  std::vector<int32_t> table(2 * 4);
  int64_t width = 4;
  const auto error = [&] {
    return launch<TopkRowsPaged>(*exec, "index_topk",
                                 {.scores = make_view(scores.data(), {2, 4}, Format::kF32),
                                  .lengths = ints(lengths),
                                  .page_table = make_view(table.data(), {2, width}, Format::kI32),
                                  .cu_seqlens_q = ints(begins),
                                  .row_starts = ints(starts),
                                  .slots = make_view(ids.data(), {2, 2}, Format::kI32)})
        .message();
  };

  EXPECT_EQ(error(), "");
  lengths[1] = 5;
  EXPECT_NE(error().find("lengths[1] is 5, expected 0 to 4"), std::string::npos) << error();
  lengths[1] = -1;
  EXPECT_NE(error().find("lengths[1] is -1"), std::string::npos) << error();
  lengths[1] = 4;
  starts[0] = 1;
  EXPECT_NE(error().find("lengths[0] is 4, expected 0 to 3"), std::string::npos) << error();
  starts[0] = -1;
  EXPECT_NE(error().find("row_starts[0] is -1, expected 0 to 4"), std::string::npos) << error();
  starts[0] = 0;
  width = 3;
  EXPECT_NE(error().find("lengths[0] is 4 but a row of page_table has 3 entries"),
            std::string::npos)
      << error();
  width = 4;
  begins = {0, 1, 1};
  EXPECT_NE(error().find("row 1 belongs to no request"), std::string::npos) << error();
  begins = {0, 2, 1};
  EXPECT_NE(error().find("cu_seqlens_q[2] is 1, expected 2 or more"), std::string::npos) << error();
  begins = {1, 1, 2};
  EXPECT_NE(error().find("cu_seqlens_q[0] is 1, expected 0"), std::string::npos) << error();
}

TEST_F(TopkRowsTest, CountsOnlyTheScoresItLooksAt) {
  std::vector<float> scores(2 * 100);
  std::vector<int32_t> lengths = {10, 30}, ids(2 * 8);
  const Cost cost = cost_of<TopkRows>({.scores = make_view(scores.data(), {2, 100}, Format::kF32),
                                       .lengths = ints(lengths),
                                       .ids = make_view(ids.data(), {2, 8}, Format::kI32)});

  EXPECT_EQ(cost.bytes_read, 4 * (40 + 2));
  EXPECT_EQ(cost.bytes_written, 4 * 16);
}

// How a GPU of 132 multiprocessors goes through rows.
TEST(TopkPlanTest, FewRowsAreHeldAndManyAreReadOnce) {
  using topk_rows::plan_rows;
  using topk_rows::RowForm;
  using topk_rows::RowPlan;
  const auto plan = [](int64_t rows, int64_t scores) {
    return plan_rows(rows, scores, false, 132);
  };
  EXPECT_EQ(plan(128, 8192), (RowPlan{RowForm::kShort, 1}));
  EXPECT_EQ(plan_rows(1, 8192, true, 132), (RowPlan{RowForm::kHeld, 2}));
  EXPECT_EQ(plan(1, 32768), (RowPlan{RowForm::kHeld, 8}));
  EXPECT_EQ(plan(32, 32768), (RowPlan{RowForm::kHeld, 4}));
  EXPECT_EQ(plan(128, 16384), (RowPlan{RowForm::kHeld, 2}));
  EXPECT_EQ(plan(8, 131072), (RowPlan{RowForm::kHeld, 16}));
  // Too many, or longer than a cluster holds: a block a multiprocessor, with eight windows or more.
  EXPECT_EQ(plan(32, 65536), (RowPlan{RowForm::kFew, 1}));
  EXPECT_EQ(plan(64, 131072), (RowPlan{RowForm::kFew, 2}));
  EXPECT_EQ(plan(128, 32768), (RowPlan{RowForm::kFew, 1}));
  EXPECT_EQ(plan(1, 131073), (RowPlan{RowForm::kFew, 2}));
  EXPECT_EQ(plan(1, 1 << 20), (RowPlan{RowForm::kFew, 8}));
  // More than multiprocessors.
  EXPECT_EQ(plan(133, 32768), (RowPlan{RowForm::kMany, 1}));
}

}  // namespace
}  // namespace fathom
