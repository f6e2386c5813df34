#include "fathom/report/files/ops_csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/report/record/dry_trace.h"
#include "fathom/report/record/live_trace.h"
#include "fathom/report/test_models_test.h"

namespace fathom {
namespace {

using testing::HasSubstr;

OpRow timed_row() {
  OpRow row;
  row.level = TraceLevel::kProbed;
  row.model = "m";
  row.phase = "decode";
  row.step = 2;
  row.index = 7;
  row.scope = "model/layer 3";
  row.layers = "3";
  row.op = "q_b_proj";
  row.kernel = "nvfp4_gemm";
  row.variant = "avx512";
  row.backend = "cpu";
  row.inputs = "x bf16 [1, 7168], quoted \"so\"";
  row.outputs = "y bf16 [1, 24576]";
  row.symbols = "x [T, Lq]";
  row.flops = 75.5e6;
  row.bytes_read = 21e6;
  row.unit = "bf16";
  row.start_us = 12.5;
  row.us = 0.125;
  row.written = {"y", "lse"};
  row.statistics = {{-1.5, 2.25, 0.125, 3, 0}, {0, 0, 0, 0, 4}};
  row.file = "fathom/layers/attention/mla_project.cc";
  row.function = "mla_project";
  return row;
}

std::string csv() {
  return write_ops_csv({timed_row()});
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  FATHOM_CHECK(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  const auto rows = read_ops_csv(text, "t/ops.csv");
  return rows.ok() ? "accepted" : rows.status().message();
}

TEST(OpsCsv, ReadsBackWhatItWrote) {
  const auto rows = read_ops_csv(csv(), "ops.csv");

  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 1u);
  const OpRow& row = rows->front();
  EXPECT_EQ(row.inputs, timed_row().inputs);
  EXPECT_EQ(row.us, 0.125);
  ASSERT_EQ(row.statistics.size(), 2u);
  EXPECT_EQ(row.statistics[0].max, 2.25);
  EXPECT_EQ(row.statistics[1].non_finite, 4);
  EXPECT_EQ(write_ops_csv(*rows), csv());
}

TEST(OpsCsv, ColumnsMayMoveAndFurtherOnesMayFollow) {
  std::string text = csv();
  text = replaced(text, "schema,level,", "schema,level,colour,");
  text = replaced(text, "/1,probed,", "/1,probed,red,");

  EXPECT_EQ(error_of(text), "accepted");
}

TEST(OpsCsv, MissingColumnIsNamed) {
  EXPECT_EQ(error_of(replaced(csv(), ",kernel,", ",kernels,")),
            "t/ops.csv: line 1: column 'kernel' is missing; expected a file of schema "
            "fathom.trace.ops/1");
  EXPECT_THAT(error_of(""), HasSubstr("line 1: column 'schema' is missing"));
}

TEST(OpsCsv, OtherSchemaIsRefusedByLineAndColumn) {
  EXPECT_EQ(error_of(replaced(csv(), "fathom.trace.ops/1", "fathom.trace.ops/9")),
            "t/ops.csv: line 2: column schema: 'fathom.trace.ops/9', expected fathom.trace.ops/1");
}

TEST(OpsCsv, NumbersThatAreNoneAreRefusedByLineAndColumn) {
  EXPECT_EQ(error_of(replaced(csv(), ",0.125,", ",nan,")),
            "t/ops.csv: line 2: column us: 'nan' is not finite");
  EXPECT_EQ(error_of(replaced(csv(), ",0.125,", ",inf,")),
            "t/ops.csv: line 2: column us: 'inf' is not finite");
  EXPECT_EQ(error_of(replaced(csv(), ",0.125,", ",-1,")),
            "t/ops.csv: line 2: column us: '-1' is negative");
  EXPECT_EQ(error_of(replaced(csv(), ",0.125,", ",fast,")),
            "t/ops.csv: line 2: column us: 'fast' is no number");
  EXPECT_EQ(error_of(replaced(csv(), "decode,2,", "decode,2.5,")),
            "t/ops.csv: line 2: column step: '2.5' is no whole number");
}

TEST(OpsCsv, RowWithoutAFigureIsRefused) {
  EXPECT_EQ(error_of(replaced(csv(), ",0.125,", ",,")),
            "t/ops.csv: line 2: column us: is empty, expected a figure");
  EXPECT_THAT(error_of(replaced(csv(), ",probed,", ",dry,")),
              HasSubstr("line 2: column start_us: '12.5' in a row of a dry run"));
  EXPECT_THAT(error_of(replaced(csv(), ",probed,", ",guessed,")),
              HasSubstr("column level: 'guessed' is no level"));
}

TEST(OpsCsv, StatisticsAreAsManyAsOperands) {
  EXPECT_EQ(error_of(replaced(csv(), ",y;lse,", ",y,")),
            "t/ops.csv: line 2: column min: has 2 entries, but column written names 1 operands");
}

TEST(OpsCsv, RowOfAnotherLengthIsRefused) {
  EXPECT_THAT(error_of(replaced(csv(), "/1,probed,m,", "/1,probed,")),
              HasSubstr("line 2: has 33 fields, the header has 34"));
}

TEST(OpsCsv, UnfinishedQuoteIsRefused) {
  EXPECT_THAT(error_of(csv() + "\"a"), HasSubstr("line 3: a quoted field does not end"));
}

TEST(OpsCsv, DryRunIsFoldedAndReadsBack) {
  const auto model = dry_model("deepseek-v2-lite");
  Recording r;
  r.model = "m";
  r.phases = dry_phases(*model, {}).value();

  const std::vector<OpRow> rows = op_rows(r);
  const auto read = read_ops_csv(write_ops_csv(rows), "ops.csv");

  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(write_ops_csv(*read), write_ops_csv(rows));
  int64_t calls = 0;
  int64_t recorded = 0;
  for (const OpRow& row : rows)
    calls += row.calls;
  for (const TracePhase& phase : r.phases)
    recorded += static_cast<int64_t>(phase.ops.size());
  EXPECT_EQ(calls, recorded);
  EXPECT_LT(static_cast<int64_t>(rows.size()), recorded / 10);
}

}  // namespace
}  // namespace fathom
