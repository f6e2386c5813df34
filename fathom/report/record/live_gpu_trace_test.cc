#include "fathom/report/record/live_gpu_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/report/files/chrome_trace.h"
#include "fathom/report/files/ops_csv.h"
#include "fathom/report/files/summary.h"
#include "fathom/report/record/gathered_phases.h"
#include "fathom/report/record/live_passes.h"
#include "fathom/report/test_models_test.h"
#include "fathom/text/json.h"
#include "tests/support/trace_events.h"

namespace fathom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(LayInTurn, EndsAreRoundedAndLengthsAddUpToTheirSum) {
  std::vector<OpRecord> records(3000);
  const std::vector<double> us(records.size(), 2.0004);  // 0.4 ns are lost if each is rounded

  const int64_t end = lay_in_turn(records, us, 500);

  EXPECT_EQ(end, 500 + 6001200);
  EXPECT_EQ(records.front().start_ns, 500);
  EXPECT_EQ(records.back().end_ns, end);
  for (size_t i = 1; i < records.size(); ++i)
    EXPECT_EQ(records[i].start_ns, records[i - 1].end_ns);
}

TEST(LayInTurn, NoRecordsTakeNoTime) {
  EXPECT_EQ(lay_in_turn({}, {}, 7), 7);
}

TEST(PromptPasses, ArePiecesOfTheChunkAndTheLastSaysSo) {
  LiveOptions o;
  o.prompt.assign(130, 1);
  o.chunk = 64;

  const std::vector<PromptPass> passes = prompt_passes(o);

  ASSERT_EQ(passes.size(), 3u);
  EXPECT_STREQ(passes[0].phase.name, "prefill");
  EXPECT_STREQ(passes[1].phase.name, "prefill_chunked");
  EXPECT_EQ(passes[2].tokens.size(), 2u);
  EXPECT_FALSE(passes[1].last);
  EXPECT_TRUE(passes[2].last);
}

/// Two decode steps as a GPU times them: each op 10 us with its marks, as one graph less.
class GpuSteps : public testing::Test {
 protected:
  GpuSteps() {
    const auto model = dry_model("deepseek-v2-lite");
    r_.title = r_.model = "lite";
    r_.config = model->config();
    r_.symbols = r_.config.symbols();
    r_.timed = true;
    BatchShape shape;
    shape.decode = {.count = 1, .new_tokens = 1, .cached = 8};
    GatheredPhases phases(r_.symbols);
    int64_t clock = 0;
    for (int i = 0; i < 2; ++i) {
      Recorder recorder(RecordLevel::kShapes, 1 << 12);
      FATHOM_CHECK(dry_run(*model, shape, {.recorder = &recorder}).ok(), "a dry run");
      std::vector<OpRecord> records = recorder.records();
      ops_ = static_cast<int64_t>(records.size());
      TraceStep step{.start_ns = clock, .tokens = 1};
      step.end_ns = clock = lay_in_turn(records, std::vector<double>(records.size(), 10.0), clock);
      step.graph_ns = 6000 * ops_;
      step.one_stream_ns = 7000 * ops_;
      const Status added = phases.add("decode", "Decode", recorder, records, step);
      FATHOM_CHECK(added.ok(), added.message());
    }
    r_.phases = phases.take();
  }

  Recording r_;
  int64_t ops_ = 0;  // of a step
};

TEST_F(GpuSteps, AreOnePhaseThatSaysHowManyThereAre) {
  ASSERT_EQ(r_.phases.size(), 1u);
  EXPECT_EQ(r_.phases[0].title, "Decode: 2 steps, 1 tokens in the first");
  EXPECT_EQ(r_.phases[0].ops.size(), static_cast<size_t>(2 * ops_));
  EXPECT_THAT(r_.phases[0].step_sizes.at("T"), ElementsAre(1));
}

TEST_F(GpuSteps, TakeWhatTheirGraphTakesAndTheirOpsMore) {
  const std::vector<SummaryRow> rows = summarise(r_, nullptr);

  const SummaryRow& phase = rows.front();
  ASSERT_EQ(phase.kind, SummaryKind::kPhase);
  EXPECT_TRUE(phase.as_graphs);
  EXPECT_DOUBLE_EQ(*phase.wall_us, 12.0 * static_cast<double>(ops_));
  EXPECT_DOUBLE_EQ(*phase.total_us, 20.0 * static_cast<double>(ops_));
  EXPECT_DOUBLE_EQ(*phase.gap_us, -8.0 * static_cast<double>(ops_));
  EXPECT_THAT(summary_lines(rows), HasSubstr("ms each as one graph, "));
  EXPECT_THAT(summary_lines(rows), HasSubstr("ms op by op with a mark after each"));
}

TEST_F(GpuSteps, HoldTheirOpsAndNameBothTimesInTheEvents) {
  const std::string text = write_chrome_trace(r_, TraceDetail::kKernels);

  const auto json = parse_json(text, {.max_bytes = 1 << 26}, "trace.json");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_THAT(test::check_trace_events(*json).errors, testing::IsEmpty());
  EXPECT_THAT(text, HasSubstr("us as one graph"));
  EXPECT_THAT(text, HasSubstr("us in one stream"));
}

TEST_F(GpuSteps, FollowEachOtherInTheTable) {
  const std::vector<OpRow> rows = op_rows(r_);

  ASSERT_EQ(rows.size(), static_cast<size_t>(2 * ops_));
  EXPECT_DOUBLE_EQ(*rows.front().start_us, 0);
  EXPECT_DOUBLE_EQ(*rows[static_cast<size_t>(ops_)].start_us, 10.0 * static_cast<double>(ops_));
}

TEST(GatheredPhases, RefuseCallsThatFellOutOfTheRecorder) {
  const auto model = dry_model("deepseek-v2-lite");
  BatchShape shape;
  shape.decode = {.count = 1, .new_tokens = 1, .cached = 8};
  Recorder recorder(RecordLevel::kShapes, 3);
  ASSERT_TRUE(dry_run(*model, shape, {.recorder = &recorder}).ok());
  GatheredPhases phases(model->config().symbols());

  const Status added = phases.add("decode", "Decode", recorder, recorder.records(), {});

  EXPECT_EQ(added.code(), StatusCode::kInternal);
  EXPECT_THAT(added.message(), HasSubstr("did not fit the recorder"));
}

}  // namespace
}  // namespace fathom
