#include "fathom/bench/files/compare.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

BenchRow row_of(std::string kernel, double us) {
  BenchRow row;
  row.conditions.host_cpu = "A";
  row.kernel = std::move(kernel);
  row.case_name = "t1";
  row.backend = "cpu";
  row.variant = "portable";
  row.status = RowStatus::kOk;
  row.us_median = us;
  return row;
}

TEST(BenchCompare, RatiosAreSecondOverFirst) {
  const std::vector<BenchRow> before = {row_of("a", 100), row_of("b", 100), row_of("c", 100)};
  const std::vector<BenchRow> after = {row_of("c", 90), row_of("a", 106), row_of("b", 105)};

  const BenchComparison found = compare_bench(before, after).value();

  ASSERT_EQ(found.rows.size(), 3u);
  EXPECT_EQ(found.rows[0].name, "c/t1");
  EXPECT_DOUBLE_EQ(found.rows[0].ratio(), 0.9);
  ASSERT_EQ(found.slower_than(0.05).size(), 1u) << "5 % is not beyond 5 %";
  EXPECT_EQ(found.slower_than(0.05)[0]->name, "a/t1");
  EXPECT_TRUE(found.conditions.empty());
  const std::string text = write_comparison(found, 0.05);
  EXPECT_NE(text.find("3 rows, ratio 1.001 (geometric mean), 1 slower by more than 5.0 %, 0 failed "
                      "in the second run"),
            std::string::npos)
      << text;
}

TEST(BenchCompare, RowsOfOneSideAreNamed) {
  BenchRow wrong = row_of("c", 1);
  wrong.status = RowStatus::kWrong;
  wrong.us_median = {};
  const std::vector<BenchRow> before = {row_of("a", 100), row_of("b", 100), row_of("c", 100)};
  const std::vector<BenchRow> after = {row_of("a", 100), wrong, row_of("d", 100)};

  const BenchComparison found = compare_bench(before, after).value();

  EXPECT_EQ(found.only_before, (std::vector<std::string>{"b/t1", "c/t1"}));
  EXPECT_EQ(found.only_after, (std::vector<std::string>{"d/t1"}));
  const std::string text = write_comparison(found, 0.05);
  EXPECT_NE(text.find("Only in the first run (2):\n\n- b/t1\n- c/t1\n"), std::string::npos) << text;
}

TEST(BenchCompare, RowsThatFailInTheSecondRunStayFailed) {
  BenchRow wrong = row_of("b", 1);
  wrong.status = RowStatus::kWrong;
  wrong.us_median = {};
  const std::vector<BenchRow> good = {row_of("a", 100), row_of("b", 100)};
  const std::vector<BenchRow> bad = {row_of("a", 100), wrong};

  const BenchComparison found = compare_bench(good, bad).value();

  EXPECT_EQ(found.failed_after, (std::vector<std::string>{"b/t1 is wrong"}));
  EXPECT_NE(
      write_comparison(found, 0.05).find("Failed in the second run (1):\n\n- b/t1 is wrong\n"),
      std::string::npos);
  EXPECT_TRUE(compare_bench(bad, good).value().failed_after.empty())
      << "what got right is no failure";
}

TEST(BenchCompare, OtherMachinesAreSaid) {
  std::vector<BenchRow> after = {row_of("a", 100)};
  after[0].conditions.host_cpu = "B";
  after[0].conditions.threads = 4;

  const BenchComparison found =
      compare_bench(std::vector<BenchRow>{row_of("a", 100)}, after).value();

  EXPECT_EQ(found.conditions,
            (std::vector<std::string>{"host_cpu: A against B", "threads: 0 against 4"}));
  EXPECT_NE(write_comparison(found, 0.05).find("their times do not compare"), std::string::npos);
}

TEST(BenchCompare, VariantsOfACaseAreRowsOfTheirOwn) {
  std::vector<BenchRow> rows = {row_of("a", 100), row_of("a", 50)};
  rows[1].variant = "avx512";

  const BenchComparison found = compare_bench(rows, rows).value();

  ASSERT_EQ(found.rows.size(), 2u);
  EXPECT_EQ(found.rows[1].name, "a/t1/avx512");
  rows[1].variant = "portable";
  EXPECT_EQ(compare_bench(rows, rows).status().message(),
            "the first run has two rows of a/t1/portable");
}

TEST(BenchCompare, RunsWithoutACommonRowDoNotCompare) {
  EXPECT_EQ(
      compare_bench(std::vector<BenchRow>{row_of("a", 1)}, std::vector<BenchRow>{row_of("b", 1)})
          .status()
          .message(),
      "no row with a time is in both runs");
  EXPECT_FALSE(compare_bench({}, {}).ok());
}

TEST(Share, IsReadAsPercentOrNumber) {
  EXPECT_DOUBLE_EQ(parse_share("5%").value(), 0.05);
  EXPECT_DOUBLE_EQ(parse_share("5 %").value(), 0.05);
  EXPECT_DOUBLE_EQ(parse_share("0.05").value(), 0.05);
  EXPECT_DOUBLE_EQ(parse_share("0").value(), 0);
  for (const char* bad : {"", "%", "five", "-5%", "nan", "5%%", "5 percent", "2000%"}) {
    EXPECT_EQ(parse_share(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace fathom
