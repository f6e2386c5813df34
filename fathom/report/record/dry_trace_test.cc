#include "fathom/report/record/dry_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

#include "fathom/report/files/ops_csv.h"
#include "fathom/report/files/summary.h"
#include "fathom/report/test_models_test.h"

namespace fathom {
namespace {

using testing::HasSubstr;

class ManyRequests : public testing::TestWithParam<const char*> {};

std::map<std::string, TracePhase> phases_of(std::string_view preset, int64_t batch) {
  const auto model = dry_model(preset);
  std::map<std::string, TracePhase> out;
  auto phases = dry_phases(*model, {.batch = batch});
  FATHOM_CHECK(phases.ok(), phases.status().message());
  for (TracePhase& phase : *phases)
    out[phase.name] = std::move(phase);
  return out;
}

// Requests of one size make the same calls: as many are recorded, whatever their number.
TEST_P(ManyRequests, AreRecordedInNoMoreCallsThanAFew) {
  const auto few = phases_of(GetParam(), 16);
  const auto many = phases_of(GetParam(), 4096);

  for (const auto& [name, phase] : many)
    EXPECT_EQ(phase.ops.size(), few.at(name).ops.size()) << name;
}

// Calls that are made request by request count as many times; those of a whole step once. (Scores
// of sixteen requests and more are made request by request.)
TEST_P(ManyRequests, CountInSumsAsOftenAsTheyAre) {
  const auto few = phases_of(GetParam(), 16);
  const auto many = phases_of(GetParam(), 64);

  for (const auto& [name, phase] : many) {
    int64_t alone = 0;
    for (size_t i = 0; i < phase.ops.size(); ++i) {
      const TraceOp& op = phase.ops[i];
      const TraceOp& other = few.at(name).ops[i];
      ASSERT_EQ(op.op, other.op) << name;
      if (op.calls == 1) continue;
      ++alone;
      EXPECT_EQ(op.calls, 64) << name << " " << op.op;
      EXPECT_EQ(other.calls, 16) << name << " " << op.op;
      EXPECT_EQ(op.cost.flops, other.cost.flops) << name << " " << op.op << ": of one call";
    }
    EXPECT_EQ(phase.calls() - few.at(name).calls(), alone * 48) << name;
    if (name == "prefill_chunked") {
      EXPECT_GT(alone, 0);
    }
    Recording r;
    r.phases = {phase};
    EXPECT_EQ(summarise(r, nullptr).front().calls, phase.calls()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Presets,
                         ManyRequests,
                         testing::Values("deepseek-r1-nvfp4", "deepseek-v3.2", "deepseek-v4-flash"),
                         [](const auto& param) {
                           std::string name(param.param);
                           for (char& c : name)
                             if (c == '-' || c == '.') c = '_';
                           return name;
                         });

TEST(DryTrace, AlikeRequestsAreOneRowThatNamesTheirNumber) {
  Recording r;
  r.model = "m";
  r.phases = {phases_of("deepseek-v2-lite", 3).at("prefill_chunked")};

  const std::vector<OpRow> rows = op_rows(r);

  const auto gather = std::find_if(rows.begin(), rows.end(),
                                   [](const OpRow& row) { return row.op == "kv_gather"; });
  ASSERT_NE(gather, rows.end());
  EXPECT_THAT(gather->scope, HasSubstr("/chunked/3 requests/key_chunk"));
  EXPECT_EQ(gather->calls % 3, 0);
  int64_t calls = 0;
  for (const OpRow& row : rows)
    calls += row.calls;
  EXPECT_EQ(calls, r.phases[0].calls());
}

TEST(DryTrace, MoreTokensThanAStepCanCountAreRefused) {
  const auto model = dry_model("deepseek-v4-pro");

  const Status refused =
      dry_phases(*model, {.batch = 4096, .prompt_tokens = 1 << 19, .kv_len = 1}).status();

  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("4096 requests of 524288 new tokens"));
}

}  // namespace
}  // namespace fathom
