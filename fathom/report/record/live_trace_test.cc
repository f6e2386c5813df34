#include "fathom/report/record/live_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/report/files/chrome_trace.h"
#include "fathom/report/files/ops_csv.h"
#include "fathom/report/files/summary.h"
#include "fathom/report/test_models_test.h"
#include "fathom/text/json.h"
#include "tests/support/trace_events.h"

namespace fathom {
namespace {

using testing::ElementsAre;

class LiveTrace : public testing::Test {
 protected:
  LiveTrace() : pool_(ThreadPool::create(1, PinThreads::kNo).value()) {
    OpenOptions open;
    open.weights = WeightOrigin::kRandom;
    open.pool = pool_.get();
    auto model = open_model(ModelSource::describe(small_preset()), {}, open);
    FATHOM_CHECK(model.ok(), model.status().message());
    model_ = std::move(model).value();
  }

  Recording record(LiveOptions options) {
    auto run = run_live(*model_, compute(), options);
    FATHOM_CHECK(run.ok(), run.status().message());
    Recording r;
    r.title = r.model = "small";
    r.config = model_->config();
    r.symbols = r.config.symbols();
    r.timed = true;
    r.begin_ns = run->begin_ns;
    r.phases = std::move(run->phases);
    return r;
  }

  Compute compute() const { return {.pool = pool_.get(), .cpu_kernels = &kernels_}; }

  const KernelSet kernels_ = KernelSet::for_cpu(Isa::kPortable);
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Model> model_;
};

std::vector<std::string> names(const Recording& r) {
  std::vector<std::string> out;
  for (const TracePhase& phase : r.phases)
    out.push_back(phase.name);
  return out;
}

TEST_F(LiveTrace, RecordsEveryPhaseThatRan) {
  const Recording r = record({.prompt = {1, 2, 3}, .generate = 2, .batch = 2});

  EXPECT_THAT(names(r), ElementsAre("prefill", "draft", "decode"));
  EXPECT_EQ(r.phases[0].steps.size(), 2u);  // a pass a sequence
  EXPECT_EQ(r.phases[1].steps.size(), 1u);
  EXPECT_EQ(r.phases[2].steps.size(), 2u);
  EXPECT_EQ(r.phases[2].step_sizes.at("T"), std::vector<int64_t>{2});
}

TEST_F(LiveTrace, LongPromptHasAPrefixInItsLaterPasses) {
  const Recording r = record({.prompt = std::vector<int32_t>(70, 5), .generate = 1, .chunk = 64});

  EXPECT_THAT(names(r), ElementsAre("prefill", "prefill_chunked", "decode"));
}

TEST_F(LiveTrace, DryRunMakesTheSameCalls) {
  const Recording r = record({.prompt = {1, 2, 3}, .generate = 1});
  BatchShape shape;
  shape.prefill = {.count = 1, .new_tokens = 3, .cached = 0};
  Recorder recorder(RecordLevel::kShapes, 1 << 10);
  ASSERT_TRUE(dry_run(*model_, shape, {.recorder = &recorder}).ok());
  const auto dry = make_phase("prefill", "", recorder.records(), {}, r.symbols);
  ASSERT_TRUE(dry.ok()) << dry.status().message();

  ASSERT_EQ(dry->ops.size(), r.phases[0].ops.size());
  for (size_t i = 0; i < dry->ops.size(); ++i) {
    EXPECT_EQ(dry->ops[i].op, r.phases[0].ops[i].op);
    EXPECT_EQ(dry->ops[i].kernel, r.phases[0].ops[i].kernel);
    EXPECT_EQ(inputs_text(dry->ops[i]), inputs_text(r.phases[0].ops[i]));
    EXPECT_EQ(outputs_text(dry->ops[i]), outputs_text(r.phases[0].ops[i]));
  }
}

TEST_F(LiveTrace, OpsFollowEachOtherWithinTheirStep) {
  const Recording r = record({.prompt = {1, 2, 3}, .generate = 3});
  for (const TracePhase& phase : r.phases) {
    int64_t last = 0;
    for (const TraceOp& op : phase.ops) {
      const TraceStep& step = phase.steps[static_cast<size_t>(op.step)];
      EXPECT_LE(step.start_ns, op.start_ns);
      EXPECT_LE(last, op.start_ns);
      EXPECT_LE(op.start_ns, op.end_ns);
      EXPECT_LE(op.end_ns, step.end_ns);
      last = op.end_ns;
    }
  }
}

TEST_F(LiveTrace, ProbedRunsOfTheSameInputHaveTheSameStatistics) {
  const LiveOptions options{.prompt = {7, 8, 9}, .generate = 2, .level = RecordLevel::kProbed};
  std::vector<OpRow> a = op_rows(record(options));
  std::vector<OpRow> b = op_rows(record(options));

  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_FALSE(a[i].statistics.empty()) << a[i].op;
    ASSERT_EQ(a[i].statistics.size(), b[i].statistics.size());
    for (size_t k = 0; k < a[i].statistics.size(); ++k) {
      EXPECT_EQ(a[i].statistics[k].l2, b[i].statistics[k].l2) << a[i].op;
      EXPECT_EQ(a[i].statistics[k].mean, b[i].statistics[k].mean) << a[i].op;
    }
  }
}

TEST_F(LiveTrace, SummaryOfAPhaseIsTheSumOfItsOps) {
  const Recording r = record({.prompt = {1, 2, 3}, .generate = 2});
  const std::vector<SummaryRow> rows = summarise(r, nullptr);
  double ops = 0;
  double kernels = 0;
  double phase = 0;
  for (const SummaryRow& row : rows) {
    if (row.phase != "decode") continue;
    if (row.kind == SummaryKind::kOp) ops += *row.total_us;
    if (row.kind == SummaryKind::kKernel) kernels += *row.total_us;
    if (row.kind != SummaryKind::kPhase) continue;
    phase = *row.total_us;
    EXPECT_EQ(row.steps, 2);
    EXPECT_NEAR(*row.wall_us, phase + *row.gap_us, 1e-6);
    EXPECT_GE(*row.gap_us, 0);
  }

  EXPECT_NEAR(ops, phase, 1e-6);
  EXPECT_NEAR(kernels, phase, 1e-6);
}

TEST_F(LiveTrace, PromptWithoutTokensIsRefused) {
  EXPECT_EQ(run_live(*model_, compute(), {}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(LiveTrace, TraceEventsNestFromStepToKernel) {
  const Recording r = record({.prompt = {1, 2, 3}, .generate = 2});

  const auto json = parse_json(write_chrome_trace(r, TraceDetail::kKernels), {}, "trace.json");

  ASSERT_TRUE(json.ok()) << json.status().message();
  const test::TraceEvents events = test::check_trace_events(*json);
  EXPECT_THAT(events.errors, testing::IsEmpty());
  EXPECT_GT(events.slices.size(), 100u);
  const std::vector<std::string> chain = {"step",  "scope", "layer", "scope",
                                          "scope", "op",    "kernel"};
  EXPECT_TRUE(std::any_of(events.slices.begin(), events.slices.end(),
                          [&](const test::TraceSlice& s) { return s.around == chain; }));
}

TEST_F(LiveTrace, OpsAreTheInnermostSlicesWithoutKernels) {
  const Recording r = record({.prompt = {1, 2, 3}, .generate = 1});

  const auto json = parse_json(write_chrome_trace(r, TraceDetail::kOps), {}, "trace.json");

  ASSERT_TRUE(json.ok()) << json.status().message();
  const test::TraceEvents events = test::check_trace_events(*json);
  EXPECT_THAT(events.errors, testing::IsEmpty());
  for (const test::TraceSlice& s : events.slices)
    EXPECT_NE(s.category, "kernel");
}

TEST_F(LiveTrace, EachRecordedStepHasAnUnrecordedOneBesideIt) {
  const auto run =
      run_live(*model_, compute(), {.prompt = {1, 2, 3}, .generate = 3, .measure_overhead = true});

  ASSERT_TRUE(run.ok()) << run.status().message();
  EXPECT_EQ(run->recorded_ns.size(), 3u);
  EXPECT_EQ(run->unrecorded_ns.size(), 3u);
  EXPECT_EQ(run->tokens.size(), 6u);
  EXPECT_EQ(run->phases.back().steps.size(), 3u) << "only recorded steps are in the recording";
}

}  // namespace
}  // namespace fathom
