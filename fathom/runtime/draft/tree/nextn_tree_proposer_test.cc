// Trees of drafts by the draft layer. The fake one is right exactly as long as all rows on the path
// of a node are, so what is expected of a tree that keeps every guess is known.
#include "fathom/runtime/draft/tree/nextn_tree_proposer.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <map>
#include <utility>

#include "tests/support/fake_draft_model.h"
#include "tests/support/fake_engine.h"

namespace fathom {
namespace {

using DraftBench = BenchOf<FakeDraftModel>;

// With two levels all nodes of the first one go on, so the right path is in the tree.
TEST(NextnTreeProposer, WholeTreesOfTwoLevelsHoldTheRightPath) {
  for (const int64_t branches : {2, 3, 4}) {
    for (const int64_t depth : {1, 2}) {
      const DraftShape all{.tokens = depth, .branches = branches};
      const DraftShape shape{.tokens = depth, .branches = branches, .width = all.candidates()};
      NextnTreeProposer trees(shape);
      DraftBench bench({.max_queries = 1 + shape.drafts(), .proposer = &trees});

      const CollectedAnswer answer = bench.alone(prompt_of(9, 1), long_answer(60));

      EXPECT_EQ(answer.tokens, EngineBench().alone(prompt_of(9, 1), long_answer(60)).tokens);
      const CoreStats stats = bench.core->stats();
      EXPECT_EQ(stats.most_drafts, depth);
      EXPECT_GE(stats.accepted_at[static_cast<size_t>(depth - 1)] + 4, stats.num_drafts)
          << "but for the last ones, which have no room";
      EXPECT_LE(stats.num_steps, 1 + 59 / (depth + 1) + 3);
      // One pass behind each step, and one for each level but the first.
      EXPECT_LE(bench.model.num_drafts, stats.num_steps * depth);
      EXPECT_EQ(stats.owned_pages, 0);
    }
  }
}

// Deeper nodes come out only if the rows of every level before them are right.
TEST(NextnTreeProposer, PathsOfEveryDepthComeOut) {
  NextnTreeProposer trees({.tokens = 5, .branches = 3, .width = 39});
  DraftBench bench({.max_queries = 40, .proposer = &trees});

  const CollectedAnswer answer = bench.alone(prompt_of(9, 1), long_answer(160));

  EXPECT_EQ(answer.tokens, EngineBench().alone(prompt_of(9, 1), long_answer(160)).tokens);
  const CoreStats stats = bench.core->stats();
  for (size_t place = 0; place < 5; ++place)
    EXPECT_GT(stats.accepted_at[place], 3) << place;
}

// Requests of every kind come and go, are preempted and aborted, with trees of every shape.
TEST(NextnTreeProposer, TreesNeverChangeTokens) {
  int64_t preemptions = 0;
  int64_t accepted = 0;
  int64_t hits = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    Rng rng(seed);
    DraftShape shape;
    shape.tokens = 1 + rng.next_below(5);
    shape.branches = 2 + rng.next_below(4);
    const int64_t least = std::max(shape.tokens, shape.branches);
    const int64_t most = std::min(shape.candidates(), kMostTreeDrafts);
    shape.width = least + rng.next_below(static_cast<uint32_t>(most - least + 1));
    NextnTreeProposer trees(shape);
    EngineLimits limits;
    limits.num_pages = 26 + rng.next_below(80);
    limits.max_num_batched_tokens = 8 + rng.next_below(90);
    limits.max_prefill_chunk = rng.next_below(9);
    limits.prefix_cache = rng.next_below(4) != 0;
    limits.share_decoded_pages = rng.next_below(2) == 0;
    limits.max_queries = 1 + shape.drafts();
    limits.proposer = &trees;
    DraftBench together(limits);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<SamplingParams> params;
    std::vector<std::shared_ptr<CollectedAnswer>> answers;
    for (int i = 0; i < 12; ++i) {
      prompts.push_back(prompt_of(1 + rng.next_below(40), static_cast<int32_t>(rng.next_below(3))));
      const int64_t n = 1 + rng.next_below(50);
      params.push_back(i % 3 != 2 ? greedy(n) : drawn(n, seed));
      if (i % 5 == 4) params.back().repetition_penalty = 1.3f;
      if (i % 4 == 1) params.back().ignore_eos = true;
      if (i % 4 == 2) params.back().top_logprobs = 2;
      if (i % 4 == 3) params.back().min_tokens = n / 2;
      if (i % 6 == 3) params.back().stop_token_ids = {20, 21};
      answers.push_back(together.submit(prompts.back(), params.back()));
      for (uint32_t steps = rng.next_below(4); steps > 0; --steps)
        ASSERT_TRUE(together.core->step().ok());
      if (i == 7) together.core->cancel(answers[5]->id);
    }
    together.run();

    EngineBench alone({.prefix_cache = false});
    for (size_t i = 0; i < prompts.size(); ++i) {
      hits += answers[i]->cached > 0 ? 1 : 0;
      if (answers[i]->finish == FinishReason::kAborted) continue;
      const CollectedAnswer expected = alone.alone(prompts[i], params[i]);
      EXPECT_EQ(answers[i]->tokens, expected.tokens) << "request " << i;
      EXPECT_EQ(answers[i]->finish, expected.finish);
      EXPECT_EQ(answers[i]->events_after_end, 0);
    }
    const CoreStats stats = together.core->stats();
    EXPECT_EQ(stats.owned_pages, 0);
    accepted += stats.accepted_tokens;
    preemptions += stats.scheduler.num_preemptions;
  }
  EXPECT_GT(accepted, 1500);
  EXPECT_GT(preemptions, 10);
  EXPECT_GT(hits, 20);
}

// Pages whose rows came from trees are found again, and the draft layer is right behind them.
TEST(NextnTreeProposer, DecodedPagesOfTreesAreShared) {
  const DraftShape shape{.tokens = 2, .branches = 3, .width = 12};
  NextnTreeProposer trees(shape);
  DraftBench bench({.share_decoded_pages = true, .max_queries = 13, .proposer = &trees});
  std::vector<int32_t> turn = prompt_of(9, 2);
  for (int i = 0; i < 4; ++i) {
    const int64_t known = static_cast<int64_t>(turn.size());
    const CollectedAnswer answer = bench.alone(turn, long_answer(24));
    EXPECT_EQ(answer.tokens, EngineBench().alone(turn, long_answer(24)).tokens);
    if (i > 0) {
      EXPECT_GE(answer.cached, known - 2 * FakeModel::kPageSize);
    }
    turn.insert(turn.end(), answer.tokens.begin(), answer.tokens.end());
  }
  const CoreStats stats = bench.core->stats();
  EXPECT_GE(stats.accepted_at[1] + 16, stats.num_drafts);
}

// The tokens of many seeds: behind each prefix they are drawn from the target's distribution.
TEST(NextnTreeProposer, DrawnTokensFollowTheTarget) {
  NextnTreeProposer trees({.tokens = 3, .branches = 2, .width = 10});
  DraftBench bench({.prefix_cache = false, .max_queries = 11, .proposer = &trees});
  constexpr int kTopK = 4;
  const std::vector<int32_t> prompt = prompt_of(5, 1);
  // How often each token came behind a prefix, of tokens 2 to 4, which are drawn at nodes of trees.
  std::map<std::vector<int32_t>, std::map<int32_t, int64_t>> counts;
#ifdef FATHOM_SANITIZED
  constexpr uint64_t kRequests = 1'000;
#else
  constexpr uint64_t kRequests = 12'000;
#endif
  for (uint64_t first = 0; first < kRequests; first += 8) {
    std::vector<std::shared_ptr<CollectedAnswer>> answers;
    for (uint64_t seed = first; seed < first + 8; ++seed) {
      SamplingParams p = drawn(5, seed);
      p.ignore_eos = true;
      p.top_p = 1.0f;
      p.top_k = kTopK;
      answers.push_back(bench.submit(prompt, p));
    }
    bench.run();
    for (const auto& answer : answers) {
      std::vector<int32_t> prefix{answer->tokens[0]};
      for (size_t i = 1; i < 4; ++i) {
        ++counts[prefix][answer->tokens[i]];
        prefix.push_back(answer->tokens[i]);
      }
    }
  }
  int64_t tested = 0;
  for (const auto& [prefix, found] : counts) {
    int64_t total = 0;
    for (const auto& [token, count] : found)
      total += count;
    if (total < 100) continue;
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), prefix.begin(), prefix.end());
    const std::vector<float> logits = FakeModel::logits_after(tokens, 40);
    std::vector<float> sorted = logits;
    std::ranges::sort(sorted, std::greater());
    double sum = 0;
    for (int i = 0; i < kTopK; ++i)
      sum += std::exp(double{sorted[static_cast<size_t>(i)]});
    double chi_square = 0;
    for (size_t v = 0; v < logits.size(); ++v) {
      if (logits[v] < sorted[kTopK - 1]) continue;
      const double expected = static_cast<double>(total) * std::exp(double{logits[v]}) / sum;
      const auto count = found.find(static_cast<int32_t>(v));
      const double off =
          (count == found.end() ? 0.0 : static_cast<double>(count->second)) - expected;
      chi_square += off * off / expected;
    }
    EXPECT_LT(chi_square, 25.0) << "three degrees of freedom, p = 1.5e-5";
    ++tested;
  }
  EXPECT_GT(tested, 4);
  EXPECT_GT(bench.core->stats().accepted_tokens, static_cast<int64_t>(kRequests) / 2);
}

// All nodes of each tree, for the test: none is verified.
struct WholeTrees : NextnTreeProposer {
  explicit WholeTrees(const DraftShape& s) : NextnTreeProposer(s), shape(s) {}

  DraftReach reach(int64_t) const override { return {shape.tokens, shape.width}; }

  Status propose(Executor& executor, std::span<const DraftPlace> places) override {
    most_levels = executor.most_levels(shape.branches);
    FATHOM_TRY(NextnTreeProposer::propose(executor, places));
    for (const DraftPlace& place : places) {
      nodes.push_back(std::exchange(place.sequence->drafts, {}));
      nodes.push_back(std::exchange(place.sequence->draft_parents, {}));
    }
    return {};
  }

  const DraftShape shape;
  int64_t most_levels = 0;                  // of a chain
  std::vector<std::vector<int32_t>> nodes;  // of each tree in turn, and their parents
};

// Some rows of the draft layer give no guesses.
WholeTrees with_bad_rows(const DraftShape& shape, int64_t num_ids, int64_t max_queries) {
  WholeTrees trees(shape);
  DraftBench bench(
      {.max_num_seqs = 3, .num_ids = num_ids, .max_queries = max_queries, .proposer = &trees});
  bench.model.one_bad_in = 3;
  for (int32_t i = 0; i < 12; ++i)
    bench.submit({0, i % 3, i / 3 % 3, 1}, long_answer(80));
  bench.run();
  return trees;
}

// Behind them a chain goes on as single levels do. In a small vocabulary a row gives fewer guesses
// than a level has nodes: a level may be short and the next one whole again, so there are no
// chains.
TEST(NextnTreeProposer, RowsWithoutGuessesLeaveTheOthersRight) {
  const DraftShape three{.tokens = 6, .branches = 3, .width = 48};
  const DraftShape four{.tokens = 6, .branches = 4, .width = 63};
  const WholeTrees chained = with_bad_rows(three, 40, 9);
  const WholeTrees small = with_bad_rows(four, 3, 12);

  EXPECT_EQ(chained.most_levels, 3);
  EXPECT_EQ(small.most_levels, 1);
  EXPECT_EQ(chained.nodes, with_bad_rows(three, 40, 5).nodes);
  EXPECT_EQ(small.nodes, with_bad_rows(four, 3, 4).nodes);
}

TEST(NextnTreeProposer, AnErrorOfTheDraftLayerIsAnEngineFault) {
  NextnTreeProposer trees({.tokens = 3, .branches = 2});
  DraftBench bench({.max_queries = 7, .proposer = &trees});
  bench.model.fail_draft_at = 3;
  auto answer = bench.submit(prompt_of(5, 1), greedy(9));
  Status s;
  while (s.ok() && !bench.core->idle())
    s = bench.core->step();

  EXPECT_FALSE(s.ok());
  EXPECT_EQ(answer->finish, FinishReason::kEngineFault);
  EXPECT_EQ(bench.core->stats().owned_pages, 0);
}

}  // namespace
}  // namespace fathom
