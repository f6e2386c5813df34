// Fairness between streams and prompts: the scheduler with a clock that goes by what a step
// computes.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>

#include "fathom/runtime/scheduler.h"

namespace fathom {
namespace {

// Streams that run while a long prompt comes in, on a clock that goes by the tokens of a step: 10
// ms and 2 ms a prompt token, as a small machine has. The caller measures and limits as the engine
// does.
struct Traffic {
  int64_t longest_gap_ms = 0;  // between two tokens of a stream
  int64_t prompt_steps = 0;    // until the long prompt gave its first token
  int64_t short_steps = -1;    // until a short prompt that came behind it did
};

Traffic run_traffic(int64_t limit, bool with_streams) {
  constexpr int64_t kLong = 32'768;
  CachePools pools({.block_tokens = 64,
                    .groups = {{.name = "tokens",
                                .layers = {0},
                                .rows = 64,
                                .codec = PageCodec::dense("token", Format::kF32, 1, nullptr)}}},
                   2048, 0);
  Scheduler scheduler({.max_num_seqs = 8, .max_num_batched_tokens = 512, .max_model_len = 65'536},
                      pools, nullptr);
  std::vector<std::unique_ptr<Sequence>> all;
  const auto submit = [&](int64_t prompt, int64_t answer) {
    auto s = std::make_unique<Sequence>();
    s->id = all.size() + 1;
    s->tokens.assign(static_cast<size_t>(prompt), 1);
    s->prompt_length = prompt;
    s->max_tokens = answer;
    EXPECT_TRUE(scheduler.submit(*s).ok());
    all.push_back(std::move(s));
    return all.back().get();
  };
  Traffic result;
  int64_t now_ms = 0;
  int64_t last_token_ms = -1;
  const auto step = [&] {
    const StepPlan& plan = scheduler.plan(limit);
    int64_t prompts = 0;
    for (const StepItem& item : plan.prefill)
      prompts += item.count;
    now_ms += 10 + 2 * prompts;
    const bool decoded = !plan.decode.empty();
    for (const auto* items : {&plan.prefill, &plan.decode}) {
      for (const StepItem& item : *items) {
        const std::vector<int32_t> token(item.yields_token ? 1 : 0, 7);
        const bool last =
            item.yields_token && item.sequence->num_generated() + 1 == item.sequence->max_tokens;
        scheduler.commit(item, token, last ? FinishReason::kLength : FinishReason::kNone);
      }
    }
    scheduler.finish_step();
    if (!decoded) return;
    if (last_token_ms >= 0)
      result.longest_gap_ms = std::max(result.longest_gap_ms, now_ms - last_token_ms);
    last_token_ms = now_ms;
  };
  for (int i = 0; with_streams && i < 4; ++i)
    submit(16, 20'000);
  for (int i = 0; with_streams && i < 3; ++i)
    step();
  const Sequence* prompt = submit(kLong, 4);
  step();
  const Sequence* behind = submit(40, 4);
  for (result.prompt_steps = 1; prompt->num_generated() == 0; ++result.prompt_steps) {
    if (result.prompt_steps > 10'000) ADD_FAILURE() << "the prompt starves";
    if (result.prompt_steps > 10'000) break;
    step();
    if (result.short_steps < 0 && behind->num_generated() > 0)
      result.short_steps = result.prompt_steps;
  }
  return result;
}

TEST(Fairness, StreamsGoOnBesideALongPromptWhichComesToItsEnd) {
  const Traffic free = run_traffic(INT64_MAX, true);
  const Traffic limited = run_traffic(112, true);

  EXPECT_GT(free.longest_gap_ms, 1000);
  EXPECT_LE(limited.longest_gap_ms, 250);
  EXPECT_LE(limited.prompt_steps, 32'768 / 112 + 4);
}

TEST(Fairness, WithoutStreamsThePromptHasTheWholeBudget) {
  EXPECT_LE(run_traffic(112, false).prompt_steps, 32'768 / 512 + 3);
}

TEST(Fairness, AShortPromptPassesALongOneThatGoesOn) {
  for (const int64_t limit : {int64_t{112}, INT64_MAX}) {
    const Traffic t = run_traffic(limit, true);

    EXPECT_GE(t.short_steps, 1) << limit;
    EXPECT_LE(t.short_steps, 2) << limit;
  }
}

TEST(Fairness, TheLeastLimitStillMovesThePrompt) {
  EXPECT_LE(run_traffic(1, true).prompt_steps, 32'768 / Scheduler::kLeastPrefill + 8);
}

}  // namespace
}  // namespace fathom
