#include "fathom/bench/harness.h"

#include <algorithm>
#include <csignal>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <string>
#include <unistd.h>

#include "fathom/bench/files/csv.h"
#include "fathom/bench/files/report.h"
#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/os/clock.h"
#include "fathom/os/file.h"
#include "fathom/text/json.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

// A kernel of this test with a right and a wrong variant.
struct Negate {
  static constexpr KernelInfo kInfo{.name = "negate",
                                    .reference_names = {"reference_negate"},
                                    .signature = "x[T,D]:f32 -> y[T,D]:f32",
                                    .limits = "D<=64"};

  struct Args {
    View x, y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = static_cast<double>(a.x.numel())}; }
};

template <int kFactor>
Status multiply(Exec&, const Negate::Args& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    for (int64_t d = 0; d < a.x.dim(1); ++d) {
      a.y.row<float>(t)[d] = kFactor * a.x.row<float>(t)[d];
    }
  }
  return {};
}

Status die(Exec&, const Negate::Args&) {
  raise(SIGKILL);
  return {};
}

Status never_return(Exec&, const Negate::Args&) {
  for (;;)
    pause();
}

const VariantTable<Negate> kNegate{
    {"right", Isa::kPortable, "", kDeterministic, multiply<-1>, MathUnit::kBf16},
    {"forgetful", Isa::kPortable, "", kDeterministic, multiply<1>},
    {"narrow", Isa::kPortable, "D<=2", kDeterministic, multiply<-1>},
};

std::vector<VariantEntry> negate_variants(const KernelSet& kernels) {
  std::vector<VariantEntry> out;
  for (const Variant<Negate>& v : kernels.table<Negate>()) {
    out.push_back({v.name, v.needs.isa, v.limits.text, v.traits, v.unit});
  }
  return out;
}

class HarnessTest : public testing::Test {
 protected:
  HarnessTest() {
    add({.name = "t4_d8", .op = "step", .bench = true, .phase = "decode"});
    options_.timer = {.min_reps = 5, .min_time_s = 0, .max_warm_up_s = 0.001};
    report_.peaks = {.device = "test", .source = "measured"};
    report_.peaks.read_gbps = report_.peaks.copy_gbps = 1e-3;  // a byte a microsecond
    report_.peaks.f32_gflops = 1;
    report_.peaks.bf16_gflops = 1;
  }

  void add(const CaseSpec& spec) {
    add_case<Negate>(list_, spec, [](CaseBuilder<Negate>& c) {
      const Tensor x = c.input({4, 8}, Format::kF32);
      const Tensor y = c.output({4, 8}, Format::kF32);
      c.bind([=](const Binding& at) { return Negate::Args{.x = at(x), .y = at(y)}; });
      c.expect_each(y, gates::exact(), [=](int64_t i, int64_t j) { return -x.at(i, j); });
    });
  }

  std::vector<BenchRow> run() {
    std::vector<BenchPlanEntry> plan;
    for (const Case* c : list_.of("negate"))
      plan.push_back({"negate", &kernel_, *c});
    EXPECT_TRUE(run_bench_plan(plan, kernels_, options_, 1, report_).ok());
    return report_.rows;
  }

  KernelSet kernels_ = cpu_kernels().with<Negate>(kNegate);
  KernelEntry kernel_{.info = Negate::kInfo,
                      .family = "test",
                      .group = "test",
                      .cpu = true,
                      .variants = negate_variants};
  CaseList list_;
  BenchKernelOptions options_;
  BenchReport report_;
};

TEST_F(HarnessTest, ACallWithoutACaseIsNamedAndSaysWhy) {
  const std::vector<BenchPlanEntry> plan = {{.asked = "negate",
                                             .kernel = &kernel_,
                                             .case_name = "preset_part.op_decode_b1",
                                             .why = "nobody says how one is made"}};

  ASSERT_TRUE(run_bench_plan(plan, kernels_, options_, 1, report_).ok());

  const BenchRow& row = report_.rows.at(0);
  EXPECT_EQ(row.status, RowStatus::kUnavailable);
  EXPECT_EQ(row.case_name, "preset_part.op_decode_b1");
  EXPECT_EQ(row.note, "nobody says how one is made");
  EXPECT_EQ(write_bench_list(plan),
            "negate  preset_part.op_decode_b1  (nobody says how one is made)\n");
}

TEST_F(HarnessTest, ChosenVariantIsNamedCheckedAndTimed) {
  const BenchRow row = run().at(0);

  EXPECT_EQ(row.status, RowStatus::kOk) << row.note;
  EXPECT_EQ(row.kernel, "negate");
  EXPECT_EQ(row.reference_name, "reference_negate");
  EXPECT_EQ(row.variant, "right");
  EXPECT_EQ(row.op, "step");
  EXPECT_EQ(row.shape, "T=4;D=8");
  EXPECT_EQ(row.m, 4);
  EXPECT_EQ(row.d, 8);
  EXPECT_EQ(row.dtype_a, "f32");
  EXPECT_EQ(row.dtype_out, "f32");
  EXPECT_EQ(row.passed, "true");
  EXPECT_GE(row.reps, 5);
  EXPECT_GT(row.us_median, 0);
  EXPECT_EQ(row.flops, 32);
  EXPECT_EQ(row.bytes_model, 256);
  EXPECT_DOUBLE_EQ(*row.roof_us, 256);
  EXPECT_DOUBLE_EQ(*row.pct_of_roof, 256 / *row.us_median * 100);
  EXPECT_EQ(row.bound, "memory");
  EXPECT_EQ(row.peak_used, "copy");
}

TEST_F(HarnessTest, WrongVariantHasMeasuresAndNoTime) {
  options_.all_variants = true;

  const std::vector<BenchRow> rows = run();

  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].status, RowStatus::kOk);
  EXPECT_EQ(rows[1].variant, "forgetful");
  EXPECT_EQ(rows[1].status, RowStatus::kWrong);
  EXPECT_EQ(rows[1].passed, "false");
  EXPECT_FALSE(rows[1].us_median.has_value());
  EXPECT_GT(rows[1].max_abs, 0);
  EXPECT_NE(rows[1].note.find("expected"), std::string::npos) << rows[1].note;
  EXPECT_EQ(rows[2].variant, "narrow");
  EXPECT_EQ(rows[2].status, RowStatus::kUnavailable);
  EXPECT_FALSE(rows[2].us_median.has_value());
}

TEST_F(HarnessTest, ReportReadsBackAndEveryRowIsThere) {
  options_.all_variants = true;
  run();

  EXPECT_EQ(read_bench_csv(write_bench_report(report_, BenchFormat::kCsv), "x").value().size(), 3u);
  const Json json =
      parse_json(write_bench_report(report_, BenchFormat::kJson), {}, "report").value();
  EXPECT_EQ(json.find("rows")->items().size(), 3u);
  EXPECT_EQ(json.find("rows")->items()[0].find("kernel")->as_string(), "negate");
  const Json& row = json.find("rows")->items()[0];
  for (const char* whole : {"M", "D", "reps", "flops", "bytes_model", "threads", "host_cores"})
    EXPECT_TRUE(row.find(whole)->is_int()) << whole;
  for (const char* real : {"us_median", "ai", "max_abs"})
    EXPECT_TRUE(row.find(real)->is_number() && !row.find(real)->is_int()) << real;
  EXPECT_TRUE(row.find("passed")->is_bool() && row.find("passed")->as_bool());
  EXPECT_FALSE(json.find("rows")->items()[1].find("passed")->as_bool());
  const std::string markdown = write_bench_report(report_, BenchFormat::kMarkdown);
  EXPECT_NE(markdown.find("| negate | forgetful | step | t4_d8 | wrong | - |"), std::string::npos)
      << markdown;
  EXPECT_NE(markdown.find("1 rows ok, 1 wrong, 1 unavailable, 0 crashed"), std::string::npos);
}

TEST_F(HarnessTest, CheckOnlyTakesNoTimes) {
  options_.check_only = true;
  const BenchRow row = run().at(0);

  EXPECT_EQ(row.passed, "true");
  EXPECT_FALSE(row.us_median.has_value());
}

TEST_F(HarnessTest, AChildGivesTheSameRowsAsThisProcess) {
  options_.all_variants = true;
  options_.isolation = BenchIsolation::kChildPerKernel;

  const std::vector<BenchRow> rows = run();

  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].status, RowStatus::kOk);
  EXPECT_GT(rows[0].us_median, 0);
  EXPECT_EQ(rows[1].status, RowStatus::kWrong);
  EXPECT_EQ(rows[2].status, RowStatus::kUnavailable);
}

TEST_F(HarnessTest, AKernelThatDiesCostsItsOwnRow) {
  static const VariantTable<Negate> kDeadly{
      {"deadly", Isa::kPortable, "", kDeterministic, die},
  };
  kernels_ = cpu_kernels().with<Negate>(kDeadly);
  add({.name = "second", .op = "step", .bench = true, .phase = "decode"});
  options_.isolation = BenchIsolation::kChildPerKernel;

  const std::vector<BenchRow> rows = run();

  ASSERT_EQ(rows.size(), 2u) << "the second case ran in a process of its own";
  EXPECT_EQ(rows[0].case_name, "t4_d8");
  EXPECT_EQ(rows[1].case_name, "second");
  for (const BenchRow& row : rows) {
    EXPECT_EQ(row.status, RowStatus::kCrashed);
    EXPECT_EQ(row.note, "its process ended with signal 9 (Killed)");
    EXPECT_FALSE(row.us_median.has_value());
  }
}

TEST_F(HarnessTest, CasesTooLongForTheMachineAreLeftOutWithTheReason) {
  add({.name = "long", .op = "step", .bench = true, .phase = "decode", .flops = 3e9});
  options_.max_call_s = 2;  // at 1 GFLOP/s

  for (const BenchIsolation isolation :
       {BenchIsolation::kInProcess, BenchIsolation::kChildPerKernel}) {
    options_.isolation = isolation;
    report_.rows.clear();
    report_.absent.clear();

    EXPECT_EQ(run().size(), 1u);
    ASSERT_EQ(report_.absent.size(), 1u);
    EXPECT_EQ(report_.absent[0].case_name, "long");
    EXPECT_EQ(report_.absent[0].note,
              "one call takes at least 3 s at the bf16 rate of this machine, 2 s are allowed; "
              "--slow times it");
  }
}

// The operands say what a call costs, and plain loops are far from what the units could do.
TEST_F(HarnessTest, CallsTooLongForTheirVariantAreLeftOutWithTheReason) {
  report_.peaks.f32_gflops = report_.peaks.bf16_gflops = 1e9;
  options_.max_call_s = 1e-12;  // 32 FLOP would need 32 TFLOP/s

  for (const BenchIsolation isolation :
       {BenchIsolation::kInProcess, BenchIsolation::kChildPerKernel}) {
    options_.isolation = isolation;
    report_.rows.clear();
    report_.absent.clear();

    EXPECT_TRUE(run().empty());
    ASSERT_EQ(report_.absent.size(), 1u);
    EXPECT_EQ(report_.absent[0].case_name, "t4_d8");
    EXPECT_NE(report_.absent[0].note.find("at the rate of plain loops of this machine"),
              std::string::npos)
        << report_.absent[0].note;
  }
  const std::string markdown = write_bench_report(report_, BenchFormat::kMarkdown);
  EXPECT_NE(markdown.find("## Left out (1)"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find("| negate | - | t4_d8 | one call takes"), std::string::npos) << markdown;
}

TEST_F(HarnessTest, AnInterruptedRunKeepsItsRowsAndNamesTheRest) {
  add({.name = "second", .op = "step", .bench = true, .phase = "decode"});
  add({.name = "third", .op = "step", .bench = true, .phase = "decode"});
  options_.interrupted = [this] { return !report_.rows.empty(); };

  EXPECT_EQ(run().size(), 1u);

  ASSERT_EQ(report_.absent.size(), 2u);
  EXPECT_EQ(report_.absent[0].case_name, "second");
  EXPECT_EQ(report_.absent[1].case_name, "third");
  for (const AbsentRow& row : report_.absent)
    EXPECT_EQ(row.note, "the run was interrupted");
}

TEST_F(HarnessTest, AnInterruptedRunDoesNotWaitForTheKernelThatRuns) {
  static const VariantTable<Negate> kEndless{
      {"endless", Isa::kPortable, "", kDeterministic, never_return},
  };
  kernels_ = cpu_kernels().with<Negate>(kEndless);
  add({.name = "second", .op = "step", .bench = true, .phase = "decode"});
  options_.isolation = BenchIsolation::kChildPerKernel;
  bool begun = false;
  options_.on_start = [&](int64_t, int64_t, const std::string&) { begun = true; };
  options_.interrupted = [&] { return begun; };

  EXPECT_TRUE(run().empty()) << "its end is no crash";

  ASSERT_EQ(report_.absent.size(), 2u);
  EXPECT_EQ(report_.absent[0].case_name, "t4_d8");
  EXPECT_EQ(report_.absent[0].note, "the run was interrupted");
}

TEST_F(HarnessTest, CasesAfterTheDeadlineAreLeftOutAndTheRowsBeforeItKept) {
  options_.deadline_ns = monotonic_ns() + int64_t{3600} * 1'000'000'000;
  EXPECT_EQ(run().size(), 1u);
  EXPECT_TRUE(report_.absent.empty());

  report_.rows.clear();
  options_.deadline_ns = monotonic_ns() - 1;
  EXPECT_TRUE(run().empty());
  ASSERT_EQ(report_.absent.size(), 1u);
  EXPECT_EQ(report_.absent[0].note, "the time of --budget was over");
}

TEST_F(HarnessTest, KernelsWithoutCodeForTheBackendAreLeftOutWithTheReason) {
  kernels_ = cpu_kernels();

  EXPECT_TRUE(run().empty());
  ASSERT_EQ(report_.absent.size(), 1u);
  EXPECT_EQ(report_.absent[0].note, "has no code for cpu");
}

TEST_F(HarnessTest, WarmRowsSaySo) {
  options_.caches = BenchCaches::kWarm;

  EXPECT_NE(run().at(0).note.find("warm"), std::string::npos);
}

TEST_F(HarnessTest, WritesADirectoryOfFiles) {
  run();
  const std::string directory = testing::TempDir() + "/fathom_bench_directory";

  ASSERT_TRUE(write_bench_directory(report_, directory).ok());

  for (const char* name :
       {"all_kernels.csv", "all_kernels.json", "negate.csv", "benchmark_summary.md"}) {
    EXPECT_EQ(path_kind(join_path(directory, name)), PathKind::kFile) << name;
    EXPECT_TRUE(remove_file(join_path(directory, name)).ok());
  }
}

TEST(BenchReport, SaysHowMuchOfAnOutputWasCompared) {
  BenchReport report;
  BenchRow row;
  row.kernel = "negate";
  row.status = RowStatus::kOk;
  row.checked = "24 of 8192 rows";
  report.rows = {row};
  EXPECT_NE(write_bench_report(report, BenchFormat::kMarkdown).find("| ok (24 of 8192 rows) |"),
            std::string::npos);
  EXPECT_NE(write_bench_report(report, BenchFormat::kJson).find("\"checked\": \"24 of 8192 rows\""),
            std::string::npos);
}

TEST(Roofline, ComputeBoundAndLatencyBoundCalls) {
  Peaks peaks{.device = "", .source = ""};
  peaks.read_gbps = peaks.copy_gbps = 100;
  peaks.f32_gflops = 1000;
  BenchRow row;
  row.us_median = 100;

  add_roofline({.flops = 5e7, .bytes_read = 1000}, peaks, row);

  EXPECT_EQ(row.bound, "compute");
  EXPECT_EQ(row.peak_used, "f32");
  EXPECT_DOUBLE_EQ(*row.roof_us, 50);
  EXPECT_DOUBLE_EQ(*row.pct_of_roof, 50);
  EXPECT_DOUBLE_EQ(*row.tflops, 0.5);
  EXPECT_DOUBLE_EQ(*row.gbps, 0.01);
  EXPECT_DOUBLE_EQ(*row.ai, 50000);
  add_roofline({.flops = 10, .bytes_read = 100}, peaks, row);
  EXPECT_EQ(row.bound, "latency");
}

TEST(Plan, TakesReferenceNamesAndSaysWhatIsMissing) {
  BenchKernelOptions options;
  options.kernels = {"moe_fused_gate"};
  const std::vector<BenchPlanEntry> plan = plan_kernel_bench(options).value().entries;
  ASSERT_FALSE(plan.empty());
  EXPECT_EQ(plan[0].kernel->info.name, "grouped_topk_gate");

  options.kernels = {"argmx"};
  const std::string message = plan_kernel_bench(options).status().message();
  EXPECT_NE(message.find("no kernel is called 'argmx'\nhint: did you mean argmax"),
            std::string::npos)
      << message;

  options.kernels.clear();
  options.suite = "reference23";
  const std::vector<BenchPlanEntry> suite = plan_kernel_bench(options).value().entries;
  const auto entry = std::find_if(suite.begin(), suite.end(), [](const BenchPlanEntry& e) {
    return e.asked == "scaled_fp4_experts_quant";
  });
  ASSERT_NE(entry, suite.end()) << "a name of a suite never goes missing without a word";
  EXPECT_EQ(entry->kernel, find_kernel("scaled_fp4_experts_quant"));
}

TEST(Plan, FilterMatchesReferenceNamesToo) {
  BenchKernelOptions options;
  options.filter = "cutlass_scaled_fp4_mm";

  const std::vector<BenchPlanEntry> plan = plan_kernel_bench(options).value().entries;

  ASSERT_FALSE(plan.empty());
  for (const BenchPlanEntry& entry : plan)
    EXPECT_EQ(entry.kernel->info.name, "nvfp4_gemm");
}

TEST(Plan, ANameThatIsNoKernelSaysWhatItIs) {
  BenchKernelOptions options;
  options.kernels = {"weak_ref_tensor"};

  EXPECT_EQ(plan_kernel_bench(options).status().message(),
            "'weak_ref_tensor' is no kernel here but View (fathom/tensor); there is nothing to "
            "time");
}

TEST(Plan, FiltersByPatternPhaseAndBatch) {
  BenchKernelOptions options;
  options.filter = "argmax/*";
  options.batch = {8};

  const std::vector<BenchPlanEntry> plan = plan_kernel_bench(options).value().entries;

  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].bench_case->spec.name, "t8_v129280");
  options.phase = "prefill";
  EXPECT_EQ(plan_kernel_bench(options).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(plan_kernel_bench(options).status().message(),
            "no case is left by --suite all --filter 'argmax/*' --phase prefill --batch 8\nhint: "
            "`--list` "
            "without them shows what there is");
  options.kernels = {"argmax"};
  ASSERT_EQ(plan_kernel_bench(options).value().entries.size(), 1u) << "what was named is answered";
  EXPECT_FALSE(plan_kernel_bench(options).value().entries[0].bench_case);
}

TEST(Plan, FiltersAttentionBySequenceAndCachedLength) {
  BenchKernelOptions options;
  options.kernels = {"mla_decode_multi", "ragged_attention"};
  const auto names_of = [&] {
    const std::vector<BenchPlanEntry> plan = plan_kernel_bench(options).value().entries;
    std::set<std::string> names;
    for (const BenchPlanEntry& entry : plan)
      names.insert(entry.name());
    return names;
  };

  options.kv_len = {1024};
  options.seq = {2, 64};
  EXPECT_EQ(names_of(), (std::set<std::string>{"mla_decode_multi/r1_b8_kv1024_q2",
                                               "mla_decode_multi/v2_lite_b8_kv1024_q2",
                                               "ragged_attention/v2_lite_t64_prefix_chunk1024"}));
  options.kv_len = {4096};
  options.seq = {};
  options.batch = {1};
  EXPECT_EQ(names_of(), (std::set<std::string>{
                            "mla_decode_multi/r1_b1_kv4096", "mla_decode_multi/v2_lite_b1_kv4096",
                            "ragged_attention/r1_t4096", "ragged_attention/v2_lite_t4096"}));
}

TEST(Plan, EveryTimedCaseHasABatchToChooseItBy) {
  const std::vector<BenchPlanEntry> plan = plan_kernel_bench({}).value().entries;
  for (const BenchPlanEntry& entry : plan) {
    ASSERT_TRUE(entry.bench_case) << entry.name();
    BenchRow row;
    store_columns(entry.bench_case->spec, row);
    EXPECT_TRUE(row.m || row.b) << entry.name();
  }
}

TEST(Plan, UnknownPhaseNamesTheKnownOnes) {
  BenchKernelOptions options;
  options.kernels = {"argmax"};
  options.phase = "decod";

  EXPECT_EQ(plan_kernel_bench(options).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(plan_kernel_bench(options).status().message(),
            "--phase is 'decod', expected one of decode, prefill, verify");
}

TEST(RunKernelBench, TimesARealKernelAgainstMeasuredCeilings) {
  BenchKernelOptions options;
  options.kernels = {"route_offsets"};
  options.filter = "*t8_*";
  options.timer = {.min_reps = 5, .min_time_s = 0, .max_warm_up_s = 0.001};
  options.peaks = {.buffer_bytes = 1 << 20, .seconds = 0.001};
  options.num_threads = 2;
  int told = 0;
  options.on_start = [&](int64_t index, int64_t count, const std::string& name) {
    EXPECT_EQ(index, told++);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(name.rfind("route_offsets/t8_", 0), 0u) << name;
  };

  const BenchReport report = run_kernel_bench(options).value();

  ASSERT_EQ(report.rows.size(), 1u);
  EXPECT_EQ(told, 1);
  EXPECT_EQ(report.rows[0].status, RowStatus::kOk) << report.rows[0].note;
  EXPECT_EQ(report.rows[0].topk, 8);
  EXPECT_EQ(report.rows[0].e, 256);
  EXPECT_EQ(report.conditions.threads, 2);
  EXPECT_GT(report.peaks.read_gbps, 0);
}

}  // namespace
}  // namespace fathom
