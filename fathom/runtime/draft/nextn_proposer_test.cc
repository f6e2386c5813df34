// Drafts by the draft layer. The fake one is right exactly as long as all of its rows are, so each
// draft that is wrong is a row that was not written, or written for another sequence.
#include "fathom/runtime/draft/nextn_proposer.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "tests/support/fake_constraint.h"
#include "tests/support/fake_draft_model.h"
#include "tests/support/fake_engine.h"

namespace fathom {
namespace {

using DraftBench = BenchOf<FakeDraftModel>;

constexpr PadPasses kPads[] = {PadPasses::kWhereCaptured, PadPasses::kAlways};

// Makes the draft behind the first `right` ones of each sequence another one.
class SpoiledDrafts final : public Proposer {
 public:
  SpoiledDrafts(Proposer& inner, int64_t right) : inner_(inner), right_(right) {}

  Status propose(Executor& executor, std::span<const DraftPlace> places) override {
    FATHOM_TRY(inner_.propose(executor, places));
    for (const DraftPlace& place : places) {
      auto& drafts = place.sequence->drafts;
      if (std::ssize(drafts) <= right_) continue;
      int32_t& token = drafts[static_cast<size_t>(right_)];
      token = token == 20 ? 21 : 20;
    }
    return {};
  }

  bool follows() const override { return true; }

  Status follow(Executor& executor,
                std::span<const ComputedTokens> computed,
                const View& hidden) override {
    return inner_.follow(executor, computed, hidden);
  }

 private:
  Proposer& inner_;
  int64_t right_;
};

TEST(FirstGuesses, AreFoundInAnyOrder) {
  FirstGuesses<uint64_t> guesses;
  for (const RequestId id : {4u, 9u, 2u})
    guesses.add(id) = 10 * id;
  for (const RequestId id : {4u, 9u, 2u, 4u, 2u, 9u, 9u}) {
    ASSERT_NE(guesses.find(id), nullptr);
    EXPECT_EQ(*guesses.find(id), 10 * id);
    EXPECT_EQ(guesses.find(3), nullptr);
  }
}

TEST(NextnProposer, EveryDraftIsRightAndSavesItsStep) {
  for (int64_t i = 0; i < 10; ++i) {
    const int64_t n = 1 + i / 2;
    NextnProposer nextn(kPads[i % 2]);
    DraftBench bench({.max_queries = 1 + n, .proposer = &nextn});

    const CollectedAnswer answer = bench.alone(prompt_of(9, 1), long_answer(60));

    EXPECT_EQ(answer.tokens, EngineBench().alone(prompt_of(9, 1), long_answer(60)).tokens);
    const CoreStats stats = bench.core->stats();
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens) << n << " drafts";
    // One token of the prompt's step, then n + 1 a step.
    EXPECT_EQ(stats.num_steps, 1 + (59 + n) / (n + 1));
    // Behind each step one pass that follows, and n - 1 that go on from it.
    EXPECT_LE(bench.model.num_drafts, stats.num_steps * n);
  }
}

// Passes behind steps whose drafts were wrong have padding, whose rows must not be read: the draft
// layer guesses right again at once.
TEST(NextnProposer, PaddedRowsAreWrittenAgain) {
  for (const int64_t wrong : {0, 1, 2, 3}) {
    NextnProposer nextn(PadPasses::kAlways);
    SpoiledDrafts spoiled(nextn, wrong);
    DraftBench bench({.max_queries = 5, .proposer = &spoiled});
    std::vector<int64_t> widths;
    bench.model.on_draft = [&](int64_t tokens) { widths.push_back(tokens); };

    const CollectedAnswer answer = bench.alone(prompt_of(9, 1), long_answer(60));

    EXPECT_EQ(answer.tokens, EngineBench().alone(prompt_of(9, 1), long_answer(60)).tokens);
    const CoreStats stats = bench.core->stats();
    // Of each step but the last ones, the drafts before the one that was spoiled.
    EXPECT_GE(stats.accepted_tokens, stats.num_drafts * wrong - 8);
    EXPECT_LE(stats.accepted_tokens, stats.num_drafts * wrong);
    // The passes behind steps are as wide as these, whatever was right.
    EXPECT_GE(std::ranges::count(widths, 5), 60 / (wrong + 1) - 6);
  }
}

// Sequences that end at different places have different room; what a chain guesses too many is
// dropped, and no row is written where there is none.
TEST(NextnProposer, SequencesOfDifferentRoomShareChains) {
  for (const PadPasses pad : kPads) {
    NextnProposer nextn(pad);
    DraftBench bench({.max_queries = 9, .proposer = &nextn});
    std::vector<std::shared_ptr<CollectedAnswer>> answers;
    for (int64_t i = 0; i < 8; ++i)
      answers.push_back(bench.submit(prompt_of(5 + i, 1), long_answer(3 + 2 * i)));
    bench.run();

    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(answers[static_cast<size_t>(i)]->tokens,
                EngineBench().alone(prompt_of(5 + i, 1), long_answer(3 + 2 * i)).tokens);
    }
    const CoreStats stats = bench.core->stats();
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
    EXPECT_GT(stats.drafted_tokens, 40);
  }
}

TEST(NextnProposer, DrawsAsTheTokensWillBeDrawn) {
  NextnProposer nextn;
  DraftBench bench({.max_queries = 4, .proposer = &nextn});
  SamplingParams p = drawn(60, 3);
  p.ignore_eos = true;

  const CollectedAnswer answer = bench.alone(prompt_of(9, 1), p);

  EXPECT_EQ(answer.tokens, EngineBench().alone(prompt_of(9, 1), p).tokens);
  EXPECT_EQ(bench.core->stats().accepted_tokens, bench.core->stats().drafted_tokens);
}

// Few tokens are ever the most probable of all, so guesses without a mask would rarely be allowed.
TEST(NextnProposer, FirstGuessesAreDrawnUnderTheMaskOfTheirPlace) {
  for (const bool sampled : {false, true}) {
    const auto run = [&](Proposer* proposer) {
      DraftBench bench({.max_queries = proposer == nullptr ? 1 : 2, .proposer = proposer});
      auto constraint = constraint_of([](const std::vector<int32_t>& accepted) {
        if (accepted.size() == 40) return FakeConstraint::Next{.allowed = {kEnd}};
        return FakeConstraint::Next{.allowed = {20, 21, 22, 30}};
      });
      std::vector<int32_t> tokens;
      Request request;
      request.prompt = prompt_of(9, 1);
      request.sampling = sampled ? drawn(60, 3) : greedy(60);
      request.constraint = constraint;
      request.on_token = [&](const TokenEvent& e) { tokens.push_back(e.token); };
      EXPECT_TRUE(bench.core->submit(std::move(request)).ok());
      bench.run();
      std::vector<int32_t> accepted = constraint->accepted;
      EXPECT_EQ(accepted, tokens);
      return std::pair(tokens, bench.core->stats());
    };
    NextnProposer nextn;

    const auto [tokens, stats] = run(&nextn);

    EXPECT_EQ(tokens, run(nullptr).first);
    EXPECT_EQ(tokens.size(), 41u);
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
    EXPECT_GE(stats.accepted_tokens, 19);
  }
}

TEST(NextnProposer, ChunksOfAPromptLeaveNoGap) {
  for (const int64_t chunk : {1, 2, 3, 4, 5, 7, 16}) {
    NextnProposer nextn;
    DraftBench bench({.max_prefill_chunk = chunk, .max_queries = 4, .proposer = &nextn});

    (void)bench.alone(prompt_of(33, 2), long_answer(30));

    const CoreStats stats = bench.core->stats();
    EXPECT_GT(stats.drafted_tokens, 10);
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens) << "chunks of " << chunk;
  }
}

// The last row of a page is made with the token behind it. Prompts that part just there share no
// page whose row is another's.
TEST(NextnProposer, PrefixHitsHaveTheRowsOfTheirOwnSequence) {
  for (const bool share : {false, true}) {
    for (const int64_t common : {7, 8, 9, 12}) {
      NextnProposer nextn(PadPasses::kAlways);
      DraftBench bench({.share_decoded_pages = share, .max_queries = 4, .proposer = &nextn});
      int64_t hits = 0;
      for (int32_t tail = 0; tail < 4; ++tail) {
        std::vector<int32_t> prompt = prompt_of(common, 2);
        for (int32_t i = 0; i < 6; ++i)
          prompt.push_back(14 + (tail * 3 + i) % 12);
        for (int turn = 0; turn < 2; ++turn) {
          const CollectedAnswer answer = bench.alone(prompt, long_answer(20));
          EXPECT_EQ(answer.tokens, EngineBench().alone(prompt, long_answer(20)).tokens);
          hits += answer.cached > 0 ? 1 : 0;
          prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
        }
      }
      const CoreStats stats = bench.core->stats();
      EXPECT_GE(hits, 6) << common << " tokens in common";
      EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens) << common << " tokens in common";
    }
  }
}

// Requests of every kind come and go, are preempted and aborted.
TEST(NextnProposer, RowsAreRightWhateverHappensToSequences) {
  int64_t preemptions = 0;
  int64_t drafted = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    Rng rng(seed);
    NextnProposer nextn(kPads[seed / 5 % 2]);
    EngineLimits limits;
    limits.num_pages = 24 + rng.next_below(60);
    limits.max_num_batched_tokens = 8 + rng.next_below(60);
    limits.max_prefill_chunk = rng.next_below(9);
    limits.prefix_cache = rng.next_below(4) != 0;
    limits.share_decoded_pages = rng.next_below(2) == 0;
    limits.max_queries = 2 + static_cast<int64_t>(seed % 5);
    limits.proposer = &nextn;
    DraftBench together(limits);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<SamplingParams> params;
    std::vector<std::shared_ptr<CollectedAnswer>> answers;
    for (int i = 0; i < 12; ++i) {
      prompts.push_back(prompt_of(1 + rng.next_below(40), static_cast<int32_t>(rng.next_below(3))));
      const int64_t n = 1 + rng.next_below(40);
      params.push_back(i % 3 != 2 ? greedy(n) : drawn(n, seed));
      if (i % 5 == 4) params.back().repetition_penalty = 1.3f;
      if (i % 4 == 1) params.back().ignore_eos = true;
      if (i % 4 == 2) params.back().top_logprobs = 2;
      answers.push_back(together.submit(prompts.back(), params.back()));
      for (uint32_t steps = rng.next_below(4); steps > 0; --steps)
        ASSERT_TRUE(together.core->step().ok());
      if (i == 7) together.core->cancel(answers[5]->id);
    }
    together.run();

    EngineBench alone({.prefix_cache = false});
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (answers[i]->finish == FinishReason::kAborted) continue;
      EXPECT_EQ(answers[i]->tokens, alone.alone(prompts[i], params[i]).tokens) << "request " << i;
    }
    const CoreStats stats = together.core->stats();
    EXPECT_EQ(stats.owned_pages, 0);
    EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
    drafted += stats.drafted_tokens;
    preemptions += stats.scheduler.num_preemptions;
  }
  EXPECT_GT(drafted, 1000);
  EXPECT_GT(preemptions, 10);
}

// A request that stops drafting has no rows from there on, and shares no page that lacks them.
TEST(NextnProposer, WhatStoppedDraftingSharesNoPagesWithoutRows) {
  NextnProposer nextn;
  DraftBench bench(
      {.share_decoded_pages = true, .max_queries = 4, .proposer = &nextn, .adaptive_drafts = true});
  bench.model.on_forward = [&](int64_t tokens) { bench.clock.advance_ns(100 + 100 * tokens); };
  // Guesses that take longer than they can save: all of them are right, and lose.
  bench.model.on_draft = [&](int64_t) { bench.clock.advance_ns(100'000); };
  std::vector<int32_t> turn = prompt_of(8, 3);
  const CollectedAnswer first = bench.alone(turn, long_answer(60));
  EXPECT_EQ(bench.core->stats().draft_pauses, 1);
  const int64_t passes = bench.model.num_drafts;
  EXPECT_LT(passes, 60);
  turn.insert(turn.end(), first.tokens.begin(), first.tokens.end());
  bench.model.on_draft = nullptr;

  const CollectedAnswer second = bench.alone(turn, long_answer(10));

  EXPECT_EQ(second.tokens, EngineBench().alone(turn, long_answer(10)).tokens);
  EXPECT_GE(second.cached, 8);
  EXPECT_LT(second.cached, 60);
  EXPECT_EQ(bench.core->stats().accepted_tokens, bench.core->stats().drafted_tokens);
}

TEST(NextnProposer, AnErrorOfTheDraftLayerIsAnEngineFault) {
  NextnProposer nextn;
  DraftBench bench({.max_queries = 3, .proposer = &nextn});
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
