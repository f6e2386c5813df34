#include "fathom/report/record/live_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "fathom/report/docs/graph_doc.h"
#include "fathom/report/files/chrome_trace.h"
#include "fathom/report/files/ops_csv.h"
#include "fathom/report/files/summary.h"
#include "fathom/report/record/dry_trace.h"
#include "fathom/report/test_models_test.h"
#include "fathom/text/json.h"
#include "tests/support/trace_events.h"

namespace fathom {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSubsetOf;
using testing::IsSupersetOf;
using testing::Not;

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

// Phases by their names, each with the names of the ops of all its steps.
std::map<std::string, std::set<std::string>> ops_of(const Recording& r) {
  std::map<std::string, std::set<std::string>> out;
  for (const TracePhase& phase : r.phases)
    for (const TraceOp& op : phase.ops)
      out[phase.name].insert(std::string(op.op));
  return out;
}

const TracePhase& phase_of(const Recording& r, std::string_view name) {
  const auto found = std::ranges::find(r.phases, name, &TracePhase::name);
  FATHOM_CHECK(found != r.phases.end(), name);
  return *found;
}

TEST_F(LiveTrace, ChainOfDraftsHasItsPassesAndTheirVerification) {
  const Recording r = record({.prompt = {1, 2, 3},
                              .generate = 2,
                              .speculative = Speculative::kMtp,
                              .drafts = {.tokens = 3}});

  EXPECT_THAT(names(r), ElementsAre("prefill", "draft", "draft_chain", "verify"));
  const TracePhase& verify = phase_of(r, "verify");
  EXPECT_EQ(verify.steps.size(), 2u);
  EXPECT_EQ(verify.steps[0].tokens, 4);
  EXPECT_THAT(verify.title, HasSubstr("4 tokens in the first"));
  EXPECT_EQ(phase_of(r, "draft").steps.size(), 3u) << "behind the prompt and each step";
  EXPECT_THAT(ops_of(r).at("verify"), IsSupersetOf({"embed_tokens", "lm_head", "sample_argmax"}));
  const auto chain = phase_of(r, "draft_chain").first_step();
  EXPECT_EQ(std::ranges::count(chain, "sample_argmax", &TraceOp::op), 2) << "the first is known";
  EXPECT_THAT(ops_of(r).at("draft_chain"), Not(Contains("draft_level")));
}

TEST_F(LiveTrace, TreeOfDraftsHasItsLevels) {
  const Recording r = record({.prompt = {1, 2, 3},
                              .generate = 2,
                              .speculative = Speculative::kMtp,
                              .drafts = {.tokens = 3, .branches = 2}});

  EXPECT_THAT(names(r), ElementsAre("prefill", "draft", "draft_chain", "verify"));
  EXPECT_EQ(phase_of(r, "verify").steps[0].tokens, 7);
  EXPECT_THAT(ops_of(r).at("draft_chain"), Contains("draft_level"));
  const std::string graph = write_graph_doc(r, {});
  EXPECT_THAT(graph, HasSubstr("Taking back drafts is no op"));
  EXPECT_THAT(graph, HasSubstr("guesses"));
}

TEST_F(LiveTrace, DraftsOfNgramsHaveNoPassesOfTheDraftLayer) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < 5; ++i)
    prompt.insert(prompt.end(), {4, 5, 6, 7});
  const Recording r = record({.prompt = prompt, .generate = 8, .speculative = Speculative::kNgram});

  EXPECT_EQ(names(r).front(), "prefill");
  EXPECT_THAT(names(r), IsSubsetOf({"prefill", "decode", "verify"}));
}

TEST_F(LiveTrace, DryVerificationMakesTheCallsOfTheRealOne) {
  for (const DraftShape drafts :
       {DraftShape{.tokens = 3}, DraftShape{.tokens = 3, .branches = 2}}) {
    const Recording r = record(
        {.prompt = {1, 2, 3}, .generate = 1, .speculative = Speculative::kMtp, .drafts = drafts});
    const auto dry = dry_phase(*model_, "verify",
                               {.prompt_tokens = 3,
                                .kv_len = 4,
                                .kernels = &kernels_,
                                .speculative = Speculative::kMtp,
                                .drafts = drafts});
    ASSERT_TRUE(dry.ok()) << dry.status().message();

    const auto real = phase_of(r, "verify").first_step();
    ASSERT_EQ(dry->ops.size(), real.size());
    for (size_t i = 0; i < real.size(); ++i) {
      EXPECT_EQ(dry->ops[i].op, real[i].op);
      EXPECT_EQ(dry->ops[i].variant, real[i].variant) << real[i].op;
      EXPECT_EQ(outputs_text(dry->ops[i]), outputs_text(real[i])) << real[i].op;
    }
  }
}

TEST_F(LiveTrace, DraftsThatTheModelDoesNotTakeAreRefused) {
  const LiveOptions options{
      .prompt = {1}, .speculative = Speculative::kNgram, .drafts = {.tokens = 3, .branches = 2}};

  const Status refused = run_live(*model_, compute(), options).status();

  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("--speculative ngram, which guesses chains"));
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
