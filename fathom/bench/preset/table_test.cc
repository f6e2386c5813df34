#include "fathom/bench/preset/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/bench/harness.h"
#include "fathom/models/config/presets.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<PresetStep> steps_of(std::string_view preset, const StepChoice& choice) {
  return preset_steps(find_preset(preset).value(), choice).value();
}

/// A row of ten microseconds for each call.
std::vector<BenchRow> rows_for(const PresetStep& step) {
  std::vector<BenchRow> rows;
  for (const PresetCall& c : step.calls) {
    BenchRow row;
    row.kernel = c.kernel();
    row.op = c.op;
    row.case_name = c.case_name;
    row.status = RowStatus::kOk;
    row.us_median = 10;
    row.bound = "memory";
    rows.push_back(row);
  }
  return rows;
}

PresetStep decode_of_one() {
  return steps_of("deepseek-r1-nvfp4", {.phase = "decode", .batch = {1}}).at(0);
}

TEST(PresetTable, CoversAllBytesOfEachPresetAndPhase) {
  for (const char* preset : {"deepseek-r1-nvfp4", "deepseek-v3-fp8", "deepseek-v2-lite"}) {
    for (const PresetStep& step : steps_of(preset, {})) {
      const std::vector<BenchRow> rows = rows_for(step);

      const StepCover cover = cover_of(step, rows);

      EXPECT_THAT(cover.left, IsEmpty()) << preset << " " << step.point.name();
      EXPECT_EQ(cover.bytes, step.bytes()) << preset << " " << step.point.name();
      EXPECT_GT(cover.bytes, 0);
    }
  }
}

TEST(PresetTable, TimesAreThoseOfTheRowsAsOftenAsTheGraphCalls) {
  const PresetStep step = decode_of_one();

  const StepTime time = step_time(step, rows_for(step)).value();

  EXPECT_DOUBLE_EQ(time.us, 10.0 * static_cast<double>(step.num_calls()));
  EXPECT_DOUBLE_EQ(time.layer_us, 240) << "24 calls in a layer with experts";
}

TEST(PresetTable, SaysHowManyBytesTheRowsCover) {
  const PresetStep step = decode_of_one();

  const std::string text = write_step_table(step, rows_for(step));

  EXPECT_THAT(text, HasSubstr("### Decode, 1 request, 1024 keys each"));
  EXPECT_THAT(text, HasSubstr("(100 %): weights, cache and activations"));
  EXPECT_THAT(text, HasSubstr("Left: none."));
  EXPECT_THAT(text, HasSubstr("`bf16_gemm`"));
}

TEST(PresetTable, ACallWithoutATimeIsLeftAndNamed) {
  const PresetStep step = decode_of_one();
  std::vector<BenchRow> rows = rows_for(step);
  for (BenchRow& row : rows)
    if (row.op == "q_b_proj") row.status = RowStatus::kWrong;

  const StepCover cover = cover_of(step, rows);

  EXPECT_THAT(cover.left, ElementsAre("project.q_b_proj (bf16_gemm)"));
  EXPECT_LT(cover.bytes, step.bytes());
  EXPECT_EQ(step_time(step, rows).status().message(),
            "the step decode_b1_kv1024 of deepseek-r1-nvfp4 has no time: no row of "
            "project.q_b_proj (bf16_gemm)");
  const std::string text = write_step_table(step, rows);
  EXPECT_THAT(text, HasSubstr("The step has no time: not every call has one. Rows cover "));
  EXPECT_THAT(text, HasSubstr("Left: project.q_b_proj (bf16_gemm)."));
  EXPECT_THAT(text, HasSubstr("`nvfp4_gemm`")) << "the other calls keep their lines";
  EXPECT_THAT(text, testing::Not(HasSubstr("Time %"))) << "a share of what is not known";
  EXPECT_THAT(write_preset_tables(std::span(&step, 1), rows),
              testing::Not(HasSubstr("Batch scaling")));
}

TEST(PresetPlan, HoldsTheCallsOfTheStepsKernelByKernel) {
  BenchKernelOptions options;
  options.preset = "deepseek-v2-lite";
  options.phase = "decode";
  options.batch = {8};

  const BenchPlan plan = plan_kernel_bench(options).value();

  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.entries.size(), plan.steps[0].calls.size());
  for (const BenchPlanEntry& entry : plan.entries) {
    ASSERT_TRUE(entry.bench_case && entry.call) << entry.name();
    EXPECT_EQ(entry.bench_case->spec.suite, "deepseek-v2-lite");
  }
  options.kernels = {"bf16_bmm"};
  EXPECT_EQ(plan_kernel_bench(options).value().entries.size(), 2u) << "w_kc and w_vc";
  options.kernels = {"hadamard"};
  EXPECT_EQ(plan_kernel_bench(options).status().message(),
            "kernel 'hadamard' is in no step of deepseek-v2-lite");
  options.kernels.clear();
  options.phase = "verify";
  EXPECT_EQ(plan_kernel_bench(options).status().message(),
            "--phase is 'verify', expected one of decode, draft, prefill");
  options.phase.clear();
  options.preset = "deepseek-v9";
  EXPECT_EQ(plan_kernel_bench(options).status().code(), StatusCode::kNotFound);
}

TEST(PresetRun, RowsAreCheckedAgainstTheRecording) {
  BenchKernelOptions options;
  options.preset = "deepseek-v2-lite";
  options.phase = "decode";
  options.batch = {1};
  options.kernels = {"rmsnorm", "kv_write"};
  options.timer = {.min_reps = 3, .min_time_s = 0, .max_warm_up_s = 0.001};
  options.peaks = {.buffer_bytes = 1 << 20, .seconds = 0.001};
  options.num_threads = 2;

  const BenchReport report = run_kernel_bench(options).value();

  ASSERT_FALSE(report.rows.empty());
  for (const BenchRow& row : report.rows) {
    EXPECT_EQ(row.status, RowStatus::kOk) << row.note;
    EXPECT_TRUE(row.case_name.starts_with("deepseek-v2-lite_")) << row.case_name;
    EXPECT_FALSE(row.layer_kind.empty());
  }
  BenchPlan plan = plan_kernel_bench(options).value();
  OpRecord other = plan.entries[0].call->record();
  ++other.cost.bytes_read;
  plan.entries[0].call = RecordedCall(other, {});
  BenchReport differs;
  ASSERT_TRUE(run_bench_plan(plan.entries, cpu_kernels(), options, 2, differs).ok());
  EXPECT_EQ(differs.rows[0].status, RowStatus::kWrong);
  EXPECT_THAT(differs.rows[0].note, HasSubstr("the recorded call"));
}

}  // namespace
}  // namespace fathom
