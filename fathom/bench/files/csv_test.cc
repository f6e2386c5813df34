#include "fathom/bench/files/csv.h"

#include <gtest/gtest.h>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

BenchRow ok_row() {
  BenchRow row;
  row.conditions = {.fathom_version = "0.1.0",
                    .commit = "abc",
                    .timestamp = "2026-01-31T12:00:00Z",
                    .host_cpu = "Some CPU, \"fast\" @ 3 GHz",
                    .host_isa = "avx512",
                    .host_cores = 2,
                    .host_mem_bytes = 1ll << 34,
                    .device_name = "cpu",
                    .threads = 2};
  row.kernel = "rmsnorm";
  row.status = RowStatus::kOk;
  row.shape = "T=1;D=7168";
  row.m = 1;
  row.us_median = row.us_mean = row.us_min = row.us_max = row.us_p10 = row.us_p90 = 0.1;
  row.flops = 28672;
  row.note = "two\nlines";
  return row;
}

std::string text_of(const BenchRow& row) {
  return write_bench_csv(std::span(&row, 1));
}

std::string error_of(const std::string& text) {
  return read_bench_csv(text, "all.csv").status().message();
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(BenchCsv, ReadsBackWhatItWrote) {
  BenchRow wrong;
  wrong.status = RowStatus::kWrong;
  wrong.kernel = "add_rmsnorm";
  wrong.max_abs = 1e-300;
  const BenchRow rows[] = {ok_row(), wrong};
  const std::string text = write_bench_csv(rows);

  const std::vector<BenchRow> back = read_bench_csv(text, "all.csv").value();

  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(write_bench_csv(back), text);
  EXPECT_EQ(back[0].conditions.host_cpu, rows[0].conditions.host_cpu);
  EXPECT_EQ(back[0].note, "two\nlines");
  EXPECT_EQ(back[0].us_median, 0.1);
  EXPECT_FALSE(back[0].gbps.has_value());
  EXPECT_EQ(back[1].status, RowStatus::kWrong);
}

TEST(BenchCsv, HasEveryColumnOfTheSpecification) {
  const std::vector<std::string> columns = bench_csv_columns();
  for (const char* name : {"schema",    "fathom_version",
                           "commit",    "timestamp",
                           "kernel",    "variant",
                           "op",        "layer_kind",
                           "phase",     "backend",
                           "arch",      "status",
                           "shape",     "B",
                           "S",         "KV",
                           "M",         "N",
                           "K",         "E",
                           "topk",      "H",
                           "D",         "dtype_w",
                           "dtype_a",   "dtype_out",
                           "scale_fmt", "reps",
                           "us_median", "us_mean",
                           "us_min",    "us_max",
                           "us_p10",    "us_p90",
                           "flops",     "bytes_model",
                           "tflops",    "gbps",
                           "ai",        "bound",
                           "roof_us",   "pct_of_roof",
                           "peak_used", "max_abs",
                           "max_rel",   "cos",
                           "sqnr_db",   "passed",
                           "budget",    "clock_mhz",
                           "mem_mhz",   "power_w",
                           "temp_c",    "threads"}) {
    EXPECT_EQ(std::count(columns.begin(), columns.end(), name), 1) << name;
  }
}

TEST(BenchCsv, ColumnsMayComeInAnotherOrderWithOthersBetween) {
  std::string text = replaced(text_of(ok_row()), "schema,", "extra,schema,");
  text = replaced(text, "\nfathom", "\n7,fathom");

  EXPECT_EQ(read_bench_csv(text, "all.csv").value()[0].kernel, "rmsnorm");
}

TEST(BenchCsv, FilesOfEarlierVersionsDoNotSayHowMuchWasCompared) {
  BenchRow row = ok_row();
  row.checked = "24 of 8192 rows";
  EXPECT_EQ(read_bench_csv(text_of(row), "all.csv").value()[0].checked, row.checked);
  const std::string earlier = replaced(text_of(row), ",checked,", ",no_column_of_today,");
  EXPECT_EQ(read_bench_csv(earlier, "all.csv").value()[0].checked, "");
}

TEST(BenchCsv, RefusesAMissingColumn) {
  EXPECT_EQ(error_of(replaced(text_of(ok_row()), ",us_p90,", ",p90,")),
            "all.csv: line 1: column 'us_p90' is missing; expected a file of schema "
            "fathom.bench.kernel/1");
  EXPECT_NE(error_of("").find("line 1: column 'schema' is missing"), std::string::npos);
}

TEST(BenchCsv, RefusesNumbersThatAreNone) {
  for (const char* bad : {"nan", "inf", "-inf", "1e999", "0x1", "1,5", "12a", " 1"}) {
    std::string text = replaced(text_of(ok_row()), ",28672,", str_cat(",", bad, ","));
    EXPECT_NE(error_of(text), "") << bad;
  }
  EXPECT_EQ(error_of(replaced(text_of(ok_row()), ",28672,", ",nan,")),
            "all.csv: line 2: column flops: 'nan' is not finite");
  EXPECT_EQ(error_of(replaced(text_of(ok_row()), ",28672,", ",fast,")),
            "all.csv: line 2: column flops: 'fast' is no number");
}

TEST(BenchCsv, RefusesOkRowWithoutATime) {
  BenchRow row = ok_row();
  row.us_median.reset();

  EXPECT_EQ(error_of(text_of(row)),
            "all.csv: line 2: column us_median: empty, but the row has status ok");
}

TEST(BenchCsv, RefusesTimeInARowThatIsNotOk) {
  BenchRow row = ok_row();
  row.status = RowStatus::kWrong;

  EXPECT_NE(error_of(text_of(row)).find("has status wrong and can have no time"),
            std::string::npos);
}

TEST(BenchCsv, RefusesATimeThatIsNone) {
  for (double us : {0.0, -1.0}) {
    BenchRow row = ok_row();
    row.us_p90 = us;

    EXPECT_EQ(error_of(text_of(row)),
              str_cat("all.csv: line 2: column us_p90: ", us, " is no time"));
  }
}

TEST(BenchCsv, NamesTheLineEvenBehindQuotedLineBreaks) {
  const BenchRow rows[] = {ok_row(), ok_row()};
  std::string text = write_bench_csv(rows);
  text.replace(text.rfind(",28672,"), 7, ",many,");

  EXPECT_NE(error_of(text).find("line 4: column flops"), std::string::npos) << error_of(text);
}

TEST(BenchCsv, RefusesAnotherSchemaStatusOrNumberOfFields) {
  EXPECT_NE(error_of(replaced(text_of(ok_row()), "kernel/1,", "kernel/2,"))
                .find("column schema: 'fathom.bench.kernel/2', expected fathom.bench.kernel/1"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(text_of(ok_row()), ",ok,", ",fine,"))
                .find("column status: 'fine' is no status"),
            std::string::npos);
  EXPECT_NE(error_of(replaced(text_of(ok_row()), ",ok,", ",ok,,")).find("fields, the header has"),
            std::string::npos);
  EXPECT_NE(error_of(text_of(ok_row()) + "\"open").find("line 4: a quoted field does not end"),
            std::string::npos);
}

TEST(BenchCsv, AnyBytesGiveRowsOrAnError) {
  const std::string good = text_of(ok_row());
  Rng rng(3);
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (uint32_t n = 1 + rng.next_below(4); n > 0; --n) {
      const size_t at = rng.next_below(static_cast<uint32_t>(text.size()));
      switch (rng.next_below(3)) {
        case 0:
          text[at] = static_cast<char>(rng.next_below(256));
          break;
        case 1:
          text.erase(at, 1 + rng.next_below(20));
          break;
        default:
          text.insert(at, 1, "\",\n\r0"[rng.next_below(5)]);
      }
      if (text.empty()) text = ",";
    }
    const Result<std::vector<BenchRow>> rows = read_bench_csv(text, "fuzz");
    // What is accepted is stable.
    if (rows.ok()) {
      const std::string again = write_bench_csv(*rows);
      EXPECT_EQ(write_bench_csv(read_bench_csv(again, "again").value()), again);
    }
  }
}

}  // namespace
}  // namespace fathom
