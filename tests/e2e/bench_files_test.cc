// What `fathom bench kernel`, `bench compare` and `roofline` write and refuse.
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/str_cat.h"
#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// A kernel of microseconds at one shape.
std::vector<std::string> small_run(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"bench",    "kernel",     "--kernels", "topk_softmax",
                                   "--filter", "*/t8_*",     "--reps",    "3",
                                   "--check",  "--min-time", "0.001"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void write_all(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

double number_of(const std::string& text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// The rows of one small run, made once.
const std::string& some_rows() {
  static const std::string rows = run_fathom(small_run({"-o", "csv"})).out;
  return rows;
}

/// A field of the only row, by its column.
std::string field_of(const std::string& csv, const std::string& column) {
  const auto split = [](const std::string& line) {
    std::vector<std::string> fields;
    std::istringstream in(line);
    for (std::string field; std::getline(in, field, ',');)
      fields.push_back(field);
    return fields;
  };
  const size_t end = csv.find('\n');
  const std::vector<std::string> names = split(csv.substr(0, end));
  const std::vector<std::string> fields = split(csv.substr(end + 1));
  for (size_t i = 0; i < names.size() && i < fields.size(); ++i)
    if (names[i] == column) return fields[i];
  return {};
}

TEST(BenchFiles, ADirectoryIsWrittenOnceAndOverwrittenWhenAsked) {
  const TempFolder folder;
  const std::string out = (folder / "r").string();

  const ProgramResult first = run_fathom(small_run({"--out-dir", out}));

  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("1 of 1 rows ok"));
  for (const char* name : {"all_kernels.csv", "all_kernels.json", "peaks.json", "topk_softmax.csv",
                           "benchmark_summary.md"})
    EXPECT_TRUE(fs::is_regular_file(fs::path(out) / name)) << name;

  const ProgramResult second = run_fathom(small_run({"--out-dir", out}));
  EXPECT_EQ(second.exit_code, 64);
  EXPECT_THAT(second.err, HasSubstr("--force overwrites"));
  EXPECT_EQ(run_fathom(small_run({"--out-dir", out, "--force"})).exit_code, 0);
}

TEST(BenchFiles, ARunThatFailsLeavesNothingAndKeepsWhatWasThere) {
  const TempFolder folder;
  const fs::path file = folder / "r.md";
  write_all(file, "good");

  const ProgramResult r = run_fathom({"bench", "kernel", "--kernels", "rmsnrm", "--out-file",
                                      file.string(), "--out-dir", (folder / "a/b").string()});

  EXPECT_EQ(r.exit_code, 64) << r.err;
  EXPECT_EQ(read_all(file), "good");
  EXPECT_FALSE(fs::exists(folder / "r.md.partial"));
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST(BenchFiles, JsonHasTheTypesOfItsColumns) {
  const ProgramResult r = run_fathom(small_run({"-o", "json"}));

  ASSERT_EQ(r.exit_code, 0) << r.err;
  for (const char* field : {"\"passed\": true", "\"M\": 8,", "\"topk\": 8,"})
    EXPECT_THAT(r.out, HasSubstr(field));
  EXPECT_THAT(r.out, ContainsRegex("\"threads\": [0-9]+,"));
  EXPECT_THAT(r.out, ContainsRegex("\"reps\": [0-9]+,"));
  EXPECT_THAT(r.out, ContainsRegex("\"us_median\": [0-9]+\\.[0-9]+,"));
}

// The published tables lack rows then, and say which.
TEST(BenchFiles, ABudgetThatEndsTheSuiteLeavesASummary) {
  const TempFolder folder;

  const ProgramResult r = run_fathom({"bench", "kernel", "--suite", "reference23", "--budget",
                                      "0.001", "--out-dir", (folder / "r").string()});

  EXPECT_THAT(r.err, AllOf(HasSubstr(" left out"), Not(HasSubstr("error"))));
  EXPECT_THAT(read_all(folder / "r/benchmark_summary.md"),
              AllOf(HasSubstr("the time of --budget was over"), HasSubstr("## How to run")));
  EXPECT_THAT(read_all(folder / "r/all_kernels.csv"), StartsWith("schema,"));
}

// Sends SIGINT to the program, whose process this becomes, when it has timed a second row: the
// first is out then.
void interrupt_after_a_row() {
  constexpr std::string_view kTimed = ": timed in ";
  const pid_t program = getpid();
  if (fork() != 0) return;
  for (int tries = 0; tries < 3000 && getppid() == program; ++tries) {
    usleep(20'000);
    const std::string log = read_all("/proc/self/fd/2");
    if (log.find(kTimed) == log.rfind(kTimed)) continue;
    kill(program, SIGINT);
    break;
  }
  _exit(0);
}

TEST(BenchFiles, AnInterruptedRunKeepsItsRows) {
  const TempFolder folder;

  const ProgramResult r =
      run_fathom({"bench", "kernel", "--kernels", "topk_softmax", "--min-time", "0.5",
                  "--log-level", "debug", "--out-dir", (folder / "r").string()},
                 {}, interrupt_after_a_row);

  EXPECT_EQ(r.exit_code, 130) << r.err;
  const std::string rows = read_all(folder / "r/all_kernels.csv");
  EXPECT_GE(std::count(rows.begin(), rows.end(), '\n'), 2) << rows;
  EXPECT_THAT(rows, Not(HasSubstr(",crashed,")));
  EXPECT_THAT(read_all(folder / "r/benchmark_summary.md"), HasSubstr("the run was interrupted"));
}

TEST(BenchFiles, RowsThatTakeTooLongAreLeftOutUnlessAskedFor) {
  const ProgramResult r = run_fathom({"bench", "kernel", "--kernels", "nvfp4_fp8_gemm", "--filter",
                                      "*r1_shared_down_proj_t512*", "--threads", "1"});

  EXPECT_THAT(r.out, HasSubstr("## Left out (1)"));
  EXPECT_THAT(r.out, ContainsRegex("one call takes at least [0-9.]+ s at the rate of plain loops "
                                   "of this machine, 2 s are allowed; --slow times it"));
}

TEST(BenchFiles, ALinkLeadsTheReportToItsTarget) {
  const TempFolder folder;
  fs::create_symlink("far.csv", folder / "r.csv");

  const ProgramResult r =
      run_fathom(small_run({"-o", "csv", "--out-file", (folder / "r.csv").string()}));

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(fs::is_symlink(folder / "r.csv"));
  EXPECT_THAT(read_all(folder / "far.csv"), StartsWith("schema,"));
}

TEST(BenchFiles, FlagsOutOfRangeAreUsageErrors) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--min-time", "nan"},
                                             {"--min-time", "inf"},
                                             {"--min-time", "-1"},
                                             {"--budget", "nan"},
                                             {"--budget", "0"},
                                             {"--reps", "0"},
                                             {"--batch", "-1"},
                                             {"--seq", "1,-1"},
                                             {"--kv-len", "x"}}) {
    const ProgramResult r = run_fathom({"bench", "kernel", "--list", flags[0], flags[1]});

    EXPECT_EQ(r.exit_code, 64) << flags[0] << " " << flags[1] << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr(flags[0] + ": found ")) << flags[1];
    EXPECT_EQ(r.out, "") << flags[0];
  }
}

TEST(BenchFiles, UnknownKernelsNameNearOnes) {
  const ProgramResult r = run_fathom({"bench", "kernel", "--kernels", "rmsnrm"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("no kernel is called 'rmsnrm'\nhint: did you mean rmsnorm"));
}

TEST(BenchFiles, WhatADirectoryHoldsIsReadFromIt) {
  const TempFolder folder;
  const std::string out = (folder / "r").string();
  ASSERT_EQ(run_fathom(small_run({"--out-dir", out})).exit_code, 0);
  fs::create_directory(folder / "empty");

  const ProgramResult picture = run_fathom({"roofline", out});
  const ProgramResult table = run_fathom({"bench", "compare", out, out + "/all_kernels.csv"});
  const ProgramResult nothing = run_fathom({"roofline", (folder / "empty").string()});

  EXPECT_EQ(picture.exit_code, 0) << picture.err;
  EXPECT_THAT(picture.out, HasSubstr("topk_softmax"));
  EXPECT_THAT(picture.out, HasSubstr("f32 ")) << "the ceilings beside the rows";
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_EQ(nothing.exit_code, 65);
  EXPECT_THAT(nothing.err, HasSubstr("holds neither all_kernels.csv of a benchmark nor ops.csv"));
}

TEST(Roofline, PngIsWhatTheConverterDraws) {
  const TempFolder folder;
  const std::string rows =
      (fs::path(FATHOM_SOURCE_DIR) / "tests/fuzz/corpus/bench_csv/four_rows").string();
  const fs::path tool = folder / "rsvg-convert";
  write_all(tool, "#!/bin/sh\nprintf 'PNG of '; head -c 5\n");
  fs::permissions(tool, fs::perms::owner_all);
  const auto with_tool = [&] { setenv("PATH", (folder.str() + ":/usr/bin:/bin").c_str(), 1); };
  const std::string png = (folder / "x.png").string();

  const ProgramResult good = run_fathom({"roofline", rows, "--png", png}, {}, with_tool);
  const ProgramResult bad =
      run_fathom({"roofline", rows, "--png", "/nowhere/x.png"}, {}, with_tool);

  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_EQ(read_all(png), "PNG of <svg ");
  EXPECT_EQ(bad.exit_code, 74);
  EXPECT_THAT(bad.err, HasSubstr("cannot create /nowhere/x.png: No such file or directory"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.str()), {}), 2) << "and nothing else";
}

TEST(BenchCompare, ARowThatGotSlowerIsExitCodeOne) {
  const TempFolder folder;
  const std::string before = (folder / "a.csv").string();
  const std::string after = (folder / "b.csv").string();
  write_all(before, some_rows());
  const std::string us = field_of(some_rows(), "us_median");
  ASSERT_FALSE(us.empty()) << some_rows();
  write_all(after, replaced(some_rows(), "," + us + ",", "," + str_cat(1.2 * number_of(us)) + ","));

  EXPECT_EQ(run_fathom({"bench", "compare", before, before, "--fail-slower", "5%"}).exit_code, 0);
  EXPECT_EQ(run_fathom({"bench", "compare", before, after}).exit_code, 0) << "nobody asked";
  EXPECT_EQ(run_fathom({"bench", "compare", before, after, "--fail-slower", "25%"}).exit_code, 0);
  const ProgramResult slower =
      run_fathom({"bench", "compare", before, after, "--fail-slower", "5%"});
  EXPECT_EQ(slower.exit_code, 1);
  EXPECT_THAT(slower.out,
              ContainsRegex("topk_softmax/t8[^|]*\\|[^|]*\\|[^|]*\\| +1\\.2.. \\| slower"));
  EXPECT_EQ(run_fathom({"bench", "compare", before, after, "--fail-slower", "lots"}).exit_code, 64);
}

TEST(Roofline, IsDrawnFromRowsInEveryFormat) {
  const std::string rows =
      (fs::path(FATHOM_SOURCE_DIR) / "tests/fuzz/corpus/bench_csv/four_rows").string();

  const ProgramResult svg = run_fathom({"roofline", rows});
  EXPECT_EQ(svg.exit_code, 0) << svg.err;
  EXPECT_THAT(svg.out, StartsWith("<svg xmlns="));
  EXPECT_THAT(svg.out, HasSubstr("topk_softmax"));
  EXPECT_THAT(run_fathom({"roofline", rows, "-o", "md"}).out, HasSubstr("## What bounds what"));
  EXPECT_THAT(run_fathom({"roofline", rows, "-o", "csv"}).out, StartsWith("group,kernel,op,"));
  EXPECT_THAT(run_fathom({"roofline", rows, "-o", "json"}).out, HasSubstr("fathom.roofline/1"));

  const ProgramResult h200 = run_fathom({"roofline", rows, "--device", "h200", "-o", "md"});
  EXPECT_THAT(h200.out, HasSubstr("h200, data sheet"));
  EXPECT_EQ(run_fathom({"roofline", rows, "--peaks", "nominal"}).exit_code, 64);
  const ProgramResult unknown = run_fathom({"roofline", rows, "--device", "h2000"});
  EXPECT_EQ(unknown.exit_code, 64);
  EXPECT_THAT(unknown.err, HasSubstr("known are h100, h200, b200, gb200"));
}

TEST(Roofline, FailedRowsStayFailed) {
  const std::string rows =
      (fs::path(FATHOM_SOURCE_DIR) / "tests/fuzz/corpus/bench_csv/crashed").string();

  const ProgramResult r = run_fathom({"roofline", rows, "--device", "h200", "-o", "md"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("## Rows without a time (1)"));
  EXPECT_THAT(r.out, HasSubstr(" is crashed\n"));
  EXPECT_THAT(r.err, HasSubstr("1 rows failed and are not drawn"));
}

TEST(BenchCompare, ARowThatFailsInTheSecondRunIsExitCodeOne) {
  const TempFolder folder;
  const fs::path corpus = fs::path(FATHOM_SOURCE_DIR) / "tests/fuzz/corpus/bench_csv";
  const std::string failed = (corpus / "crashed").string();

  const ProgramResult same = run_fathom({"bench", "compare", failed, failed});

  EXPECT_EQ(same.exit_code, 1);
  EXPECT_THAT(same.out, HasSubstr("Failed in the second run (1):"));
}

TEST(BenchFiles, BatchAndSequenceChooseRows) {
  const ProgramResult r = run_fathom({"bench", "kernel", "--suite", "reference23", "--kernels",
                                      "rmsnorm", "--list", "--batch", "8,64", "--seq", "1"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("decode_b8 "));
  EXPECT_THAT(r.out, HasSubstr("decode_b64 "));
  EXPECT_THAT(r.out, Not(HasSubstr("decode_b1 ")));
  EXPECT_THAT(r.out, Not(HasSubstr("prefill")));
}

TEST(Roofline, BadRowsAreRefusedByLineAndColumn) {
  const TempFolder folder;
  const std::string path = (folder / "rows.csv").string();
  const auto error_of = [&](const std::string& text) {
    write_all(path, text);
    const ProgramResult r = run_fathom({"roofline", path});
    EXPECT_EQ(r.exit_code, 65) << r.err;
    EXPECT_THAT(r.out, Not(HasSubstr("<svg")));
    return r.err;
  };
  const std::string us = "," + field_of(some_rows(), "us_median") + ",";

  EXPECT_THAT(error_of(replaced(some_rows(), ",us_p90,", ",p90,")),
              HasSubstr("rows.csv: line 1: column 'us_p90' is missing"));
  EXPECT_THAT(error_of(replaced(some_rows(), us, ",nan,")),
              HasSubstr("rows.csv: line 2: column us_median: 'nan' is not finite"));
  EXPECT_THAT(error_of(replaced(some_rows(), us, ",,")),
              HasSubstr("rows.csv: line 2: column us_median: empty, but the row has status ok"));
  EXPECT_THAT(error_of(""), HasSubstr("line 1: column 'schema' is missing"));
}

#ifdef FATHOM_FAILPOINTS

TEST(BenchFiles, ABrokenKernelIsWrongAndTheExitCodeSaysSo) {
  const ProgramResult r = run_fathom(small_run({"-o", "csv"}), {}, [] {
    setenv("FATHOM_FAIL", "case_runner.result:fail:1:1", 1);
  });

  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(field_of(r.out, "status"), "wrong");
  EXPECT_EQ(field_of(r.out, "us_median"), "") << "a wrong result has no time";
  EXPECT_THAT(r.err, HasSubstr("0 of 1 rows ok, 1 wrong"));
}

TEST(BenchFiles, AKernelThatDiesIsCrashedAndTheOthersGoOn) {
  const ProgramResult r =
      run_fathom({"bench", "kernel", "--kernels", "topk_softmax", "--filter", "*/t?_*", "--reps",
                  "3", "--min-time", "0.001"},
                 {}, [] { setenv("FATHOM_FAIL", "case_runner.result:kill_nth:2:1", 1); });

  EXPECT_EQ(r.exit_code, 1);
  EXPECT_THAT(r.err, HasSubstr("1 of 2 rows ok, 1 crashed"));
  EXPECT_THAT(r.out, HasSubstr("its process ended with signal 9"));
}

#endif

}  // namespace
}  // namespace fathom::e2e
