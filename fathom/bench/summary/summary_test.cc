#include "fathom/bench/summary/summary.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "fathom/bench/files/report.h"
#include "fathom/bench/suites/plan.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

/// A run of the whole suite in which every row took ten microseconds a token.
BenchReport whole_report() {
  BenchReport report;
  report.suite = kReferenceSuite;
  report.whole_suite = true;
  report.command = "fathom bench kernel --suite reference23 --backend cpu --out-dir r";
  report.conditions.device_name = "Some CPU";
  report.conditions.host_mem_bytes = 3ll << 33;
  report.conditions.timestamp = "2026-01-31T12:00:00Z";
  report.peaks = {.device = "Some CPU", .source = "measured"};
  report.peaks.read_gbps = 30;
  report.peaks.copy_gbps = 20;
  report.peaks.f32_gflops = 300;
  report.peaks.bf16_gflops = 600;
  BenchKernelOptions options;
  options.suite = kReferenceSuite;
  BenchPlan plan = plan_kernel_bench(options).value();
  report.steps = std::move(plan.steps);
  for (const BenchPlanEntry& entry : plan.entries) {
    const CaseSpec& spec = entry.bench_case->spec;
    BenchRow row;
    row.kernel = entry.kernel->info.name;
    row.case_name = spec.name;
    row.op = spec.op;
    row.phase = spec.phase;
    row.variant = "avx512";
    row.b = static_cast<double>(spec.batch);
    row.s = static_cast<double>(spec.seq);
    row.status = RowStatus::kOk;
    row.us_median = row.us_mean = row.us_min = row.us_max = row.us_p10 = row.us_p90 =
        10.0 * static_cast<double>(spec.batch * spec.seq);
    add_roofline({.flops = 1e6, .bytes_read = 1000, .bytes_written = 10}, report.peaks, row);
    report.rows.push_back(row);
  }
  return report;
}

size_t count_of(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST(ReferenceSummary, EveryTableOfThePublishedBenchmarkIsFilled) {
  const std::string text = write_reference_summary(whole_report()).value();

  for (const char* head :
       {"**Status:** 23/23 kernels ok", "## Hardware specifications", "## All 23 kernels",
        "## Limits of kernels", "## Model configuration", "## Decode phase (B=1, S=1)",
        "## Decode phase (B=128, S=1)", "## Prefill phase (B=1, S=1024)",
        "# The rows of the published benchmark\n", "# The preset's own table: deepseek-r1-nvfp4\n",
        "### Decode, 8 requests, 1024 keys each", "### Prefill, 1 x 2048 tokens",
        "### Batch scaling (decode, S=1)", "### Sequence scaling (prefill, B=1)",
        "## How to run"}) {
    EXPECT_EQ(count_of(text, head), 1u) << head << "\n" << text;
  }
  EXPECT_EQ(count_of(text, "| - "), 0u) << "a table with a dash is a failed run";
  EXPECT_EQ(count_of(text, "nan"), 0u);
  EXPECT_EQ(count_of(text, "inf"), 0u);
  EXPECT_NE(text.find("fathom bench kernel --suite reference23 --backend cpu --out-dir r"),
            std::string::npos);
}

// Memory is in powers of two wherever it is said.
TEST(ReferenceSummary, AndTheReportOfPartsSayTheMemoryOfTheMachine) {
  const BenchReport report = whole_report();

  EXPECT_EQ(count_of(write_reference_summary(report).value(), " cores, 24.00 GiB\n"), 1u);
  EXPECT_EQ(count_of(write_bench_report(report, BenchFormat::kMarkdown), " threads, 24.00 GiB\n"),
            1u);
}

TEST(ReferenceSummary, LayerTimesAndRatesAreThoseOfTheRows) {
  const BenchReport report = whole_report();
  const std::string text = write_reference_summary(report).value();

  // 24 ops of 10 us a token in a layer: 0.24 ms; the same rate of the step at every batch.
  const size_t at = text.find("### Batch scaling");
  const std::string table = text.substr(at, text.find("###", at + 3) - at);
  EXPECT_NE(table.find(" 0.240 |"), std::string::npos) << table;
  EXPECT_NE(table.find(" 30.7 |"), std::string::npos) << table;
  const double rate = 1e5 / static_cast<double>(report.steps[0].num_calls());
  EXPECT_EQ(count_of(table, str_cat(" ", three_digits(rate), " |")), 4u) << table;
}

TEST(ReferenceSummary, PublishedRowsAndThePresetsAreApart) {
  const std::string text = write_reference_summary(whole_report()).value();

  const size_t own = text.find("# The preset's own table");
  const std::string published = text.substr(0, own);
  EXPECT_NE(published.find("| q_b_proj "), std::string::npos) << published;
  EXPECT_EQ(published.find("`bf16_bmm`"), std::string::npos) << "no row of the benchmark";
  EXPECT_EQ(text.find("`fp8_bmm`", own), std::string::npos) << "no call of the preset";
  EXPECT_EQ(count_of(text, "Left: none."), 9u);
  EXPECT_EQ(count_of(text, "(100 %)"), 9u);
}

TEST(ReferenceSummary, AMissingRowIsNamedWithTheReasonUnderItsTable) {
  BenchReport report = whole_report();
  for (BenchRow& row : report.rows) {
    if (row.case_name != "reference_o_proj_decode_b1") continue;
    AbsentRow absent = row;
    absent.note = "the time of --budget was over";
    report.absent.push_back(absent);
  }
  std::erase_if(report.rows,
                [](const BenchRow& row) { return row.case_name == "reference_o_proj_decode_b1"; });

  const std::string text = write_reference_summary(report).value();

  const size_t at = text.find("## Decode phase (B=1, S=1)");
  const std::string table = text.substr(at, text.find("## ", at + 3) - at);
  EXPECT_NE(table.find("Without a time:\n\n- o_proj (nvfp4_gemm): the time of --budget was over\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("| q_b_proj "), std::string::npos) << table;
}

TEST(ReferenceSummary, AMissingCallOfThePresetIsNamedInItsStep) {
  BenchReport report = whole_report();
  std::erase_if(report.rows, [](const BenchRow& row) {
    return row.case_name == "deepseek-r1-nvfp4_project.q_b_proj_decode_b32_kv1024";
  });

  const std::string text = write_reference_summary(report).value();

  EXPECT_EQ(count_of(text, "The step has no time"), 1u);
  EXPECT_EQ(count_of(text, "Left: project.q_b_proj (bf16_gemm)."), 1u);
  EXPECT_EQ(count_of(text, "Left: none."), 8u) << "the other steps have theirs";
}

TEST(ReferencePoints, LimitsOfKernelsLeavePointsOut) {
  const auto points = [](std::string_view kernel) {
    const ReferenceLimit* limit = all_cases().reference_limit(kernel);
    return std::count_if(
        reference_points().begin(), reference_points().end(),
        [&](const ReferencePoint& p) { return limit == nullptr || !limit->leaves_out(p); });
  };

  EXPECT_EQ(points("latent_down_gemm"), 3);
  EXPECT_EQ(points("ragged_attention"), 6);
  EXPECT_EQ(points("mla_decode_multi"), 6);
  EXPECT_EQ(points("bf16_gemm"), 8);
  EXPECT_EQ(points("rmsnorm"), static_cast<int64_t>(reference_points().size()));
  EXPECT_EQ(all_cases().reference_limit("router_gemm")->why,
            "the contract takes at most 16 tokens; bf16_gemm runs above");
}

TEST(BenchDirectory, OfTheWholeSuiteHoldsEveryFile) {
  const TempDir parent;
  const std::string directory = parent.file("r");

  ASSERT_TRUE(write_bench_directory(whole_report(), directory).ok());

  for (const char* name :
       {"all_kernels.csv", "all_kernels.json", "peaks.json", "rmsnorm.csv", "bf16_gemm.csv",
        "benchmark_summary.md", "roofline.md", "roofline.svg"}) {
    EXPECT_EQ(path_kind(join_path(directory, name)), PathKind::kFile) << name;
  }
}

TEST(BenchDirectory, IncompleteRunLeavesWhatItMeasuredAndASummaryOfIt) {
  const TempDir parent;
  for (const size_t rows : {0, 3}) {
    const std::string directory = parent.file(str_cat("r", rows));
    BenchReport report = whole_report();
    report.rows.resize(rows);

    const Status written = write_bench_directory(report, directory);

    ASSERT_TRUE(written.ok()) << written.message();
    for (const char* name : {"all_kernels.csv", "all_kernels.json", "benchmark_summary.md"})
      EXPECT_EQ(path_kind(join_path(directory, name)), PathKind::kFile) << rows << " " << name;
    const std::string summary =
        read_file(join_path(directory, "benchmark_summary.md"), 1 << 20).value();
    EXPECT_NE(summary.find("Without a time:\n\n"), std::string::npos) << rows;
    EXPECT_EQ(count_of(summary, "nan"), 0u);
  }
}

TEST(BenchDirectory, AnEarlierRunIsNotOverwrittenUnasked) {
  const TempDir parent;
  const std::string directory = parent.file("r");
  EXPECT_TRUE(check_bench_directory(directory, Overwrite::kNo).ok()) << "nothing is there";
  EXPECT_EQ(path_kind(directory), PathKind::kMissing) << "asking makes nothing";
  ASSERT_TRUE(make_directories(directory).ok());
  EXPECT_TRUE(check_bench_directory(directory, Overwrite::kNo).ok()) << "it is empty";
  ASSERT_TRUE(write_bench_directory(whole_report(), directory).ok());
  const size_t files = list_directory(directory)->size();

  EXPECT_EQ(check_bench_directory(directory, Overwrite::kNo).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_bench_directory(directory, Overwrite::kYes).ok());
  EXPECT_EQ(check_bench_directory(join_path(directory, "peaks.json"), Overwrite::kYes).code(),
            StatusCode::kInvalidArgument)
      << "a file is no directory";
  EXPECT_EQ(list_directory(directory)->size(), files) << "asking leaves nothing";
}

TEST(BenchDirectory, WhatCannotBeWrittenIsSaidBeforeTheRun) {
  const TempDir parent;
  ASSERT_TRUE(make_directories(parent.file("r/peaks.json")).ok());
  ASSERT_TRUE(write_file(parent.file("file"), "mine").ok());

  EXPECT_EQ(check_bench_directory(parent.file("r"), Overwrite::kYes).message(),
            "cannot write " + parent.file("r/peaks.json") +
                ": is a directory, expected a regular file or a new name\nhint: choose another "
                "name");
  EXPECT_EQ(check_bench_directory(parent.file("file/r"), Overwrite::kNo).message(),
            "cannot make directory " + parent.file("file/r") +
                ": Not a directory\nhint: " + parent.file("file") + " is no directory");
}

}  // namespace
}  // namespace fathom
