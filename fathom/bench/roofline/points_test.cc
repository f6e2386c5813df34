#include "fathom/bench/roofline/points.h"

#include <gtest/gtest.h>

#include "fathom/bench/harness.h"
#include "fathom/text/json.h"

namespace fathom {
namespace {

Peaks some_peaks() {
  Peaks peaks{.device = "cpu", .source = "measured"};
  peaks.read_gbps = 40;
  peaks.copy_gbps = 20;
  peaks.f32_gflops = 100;
  peaks.bf16_gflops = 400;
  return peaks;
}

BenchRow row_of(std::string kernel, double us, const Cost& cost) {
  BenchRow row;
  row.kernel = std::move(kernel);
  row.case_name = "case";
  row.phase = "decode";
  row.status = RowStatus::kOk;
  row.us_median = us;
  add_roofline(cost, some_peaks(), row);
  return row;
}

const Cost kReads{.flops = 8e6, .bytes_read = 8'000'000, .unit = MathUnit::kBf16};
const Cost kCopies{.flops = 0, .bytes_read = 4'000'000, .bytes_written = 4'000'000};
const Cost kComputes{.flops = 8e9, .bytes_read = 8'000'000, .unit = MathUnit::kBf16};

TEST(RooflinePoints, RatesFollowFromCostAndTime) {
  const BenchRow rows[] = {row_of("a", 400, kReads), row_of("b", 1200, kCopies)};

  const std::vector<RooflinePoint> points = points_of_rows(rows, PointChoice::kAuto).value();

  ASSERT_EQ(points.size(), 2u);
  EXPECT_DOUBLE_EQ(points[0].intensity(), 1);
  EXPECT_DOUBLE_EQ(points[0].gflops(), 20);
  EXPECT_DOUBLE_EQ(points[0].gbps(), 20);
  EXPECT_DOUBLE_EQ(points[0].percent(), 50);
  EXPECT_DOUBLE_EQ(points[0].share, 0.25);
  EXPECT_EQ(points[0].bound, "memory");
  EXPECT_EQ(points[1].intensity(), 0);
  EXPECT_TRUE(points[1].copies);
  EXPECT_DOUBLE_EQ(points[1].share, 0.75);
}

TEST(RooflinePoints, RowsWithoutATimeAreNoPoints) {
  BenchRow wrong = row_of("a", 1, kReads);
  wrong.status = RowStatus::kWrong;
  wrong.us_median = {};

  EXPECT_EQ(points_of_rows(std::span(&wrong, 1), PointChoice::kAll).status().message(),
            "no row has a time: there is nothing to draw");
}

TEST(RooflinePoints, ARowWithoutAFigureIsNamed) {
  BenchRow row = row_of("a", 1, kReads);
  row.flops = {};

  EXPECT_EQ(points_of_rows(std::span(&row, 1), PointChoice::kAll).status().message(),
            "a/case: column flops is empty, expected 0 or 1 to 1e+30 in a row with status ok");
  row.flops = 1e300;
  EXPECT_EQ(points_of_rows(std::span(&row, 1), PointChoice::kAll).status().message(),
            "a/case: column flops is 1e+300, expected 0 or 1 to 1e+30 in a row with status ok");
}

TEST(RooflinePoints, OfTheReferenceSuiteOnlyThePublishedTablesAreChosen) {
  std::vector<BenchRow> rows;
  for (int64_t b : {1, 8, 128}) {
    BenchRow row = row_of("rmsnorm", 1, kReads);
    row.op = "input_layernorm";
    row.case_name = str_cat("reference_input_layernorm_decode_b", b);
    row.b = static_cast<double>(b);
    row.s = 1;
    rows.push_back(row);
  }

  const std::vector<RooflinePoint> chosen = points_of_rows(rows, PointChoice::kAuto).value();

  EXPECT_EQ(groups_of(chosen), (std::vector<std::string>{"decode B=1", "decode B=128"}));
  EXPECT_DOUBLE_EQ(chosen[0].share, 1) << "shares are of the group";
  EXPECT_EQ(points_of_rows(rows, PointChoice::kAll).value().size(), 3u);
}

TEST(RooflinePoints, RowsShowTheCeilingsTheyWereHeldAgainst) {
  const BenchRow rows[] = {row_of("a", 400, kReads), row_of("b", 1200, kCopies),
                           row_of("c", 1e5, kComputes)};

  const Peaks peaks = peaks_of_rows(rows).value();

  EXPECT_DOUBLE_EQ(peaks.read_gbps, 40);
  EXPECT_DOUBLE_EQ(peaks.copy_gbps, 20);
  EXPECT_DOUBLE_EQ(peaks.bf16_gflops, 400);
  EXPECT_EQ(peaks.f32_gflops, 0) << "no row used it";
  EXPECT_EQ(peaks_of_rows(std::span(rows).subspan(2)).status().code(), StatusCode::kNotFound);
}

TEST(RooflinePoints, OtherCeilingsGiveOtherRoofsAndBounds) {
  const BenchRow row = row_of("c", 1e5, kComputes);
  std::vector<RooflinePoint> points = points_of_rows(std::span(&row, 1), PointChoice::kAll).value();
  EXPECT_DOUBLE_EQ(points[0].roof_us, 20'000);
  EXPECT_EQ(points[0].bound, "compute");

  hold_to(nominal_peaks("h200").value(), points);

  EXPECT_NEAR(points[0].roof_us, 8.0889, 1e-4);
  EXPECT_EQ(points[0].bound, "compute");
  points[0].flops = 1;
  hold_to(nominal_peaks("h200").value(), points);
  EXPECT_EQ(points[0].bound, "memory");
}

TEST(RooflinePoints, FilesHoldALineAPoint) {
  const BenchRow rows[] = {row_of("a", 400, kReads), row_of("b", 1200, kCopies)};
  const std::vector<RooflinePoint> points = points_of_rows(rows, PointChoice::kAuto).value();

  const std::string csv = write_points_csv(points);
  const Json json = parse_json(write_points_json(points, some_peaks()), {}, "points").value();

  EXPECT_EQ(csv.substr(csv.find('\n') + 1),
            "decode,a,,case,8e+06,8e+06,400,1,20,20,200,50,memory,0.25\n"
            "decode,b,,case,0,8e+06,1200,0,0,6.666666666666667,400,33.33333333333333,memory,"
            "0.75\n");
  ASSERT_EQ(json.find("points")->items().size(), 2u);
  EXPECT_EQ(json.find("peaks")->find("read_gbps")->as_double(), 40);
}

}  // namespace
}  // namespace fathom
