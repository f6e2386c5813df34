#include "fathom/runtime/engine.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <set>

#include "tests/support/fake_engine.h"

namespace fathom {
namespace {

TEST(Engine, GreedyTokensAreThoseOfTheModel) {
  for (int64_t length : {1, 2, 3, 4, 5, 63, 64, 65, 130}) {
    EngineBench bench;
    const auto prompt = prompt_of(length, 1);

    const CollectedAnswer a = bench.alone(prompt, greedy(20));

    EXPECT_EQ(a.tokens, expected_greedy(prompt, 20)) << length;
  }
}

TEST(Engine, EndsWithTheReason) {
  EngineBench bench;
  SamplingParams p = greedy(5);
  p.ignore_eos = true;
  EXPECT_EQ(bench.alone(prompt_of(3, 1), p).finish, FinishReason::kLength);
  p.stop_token_ids = {expected_greedy(prompt_of(3, 1), 5)[2]};
  const CollectedAnswer a = bench.alone(prompt_of(3, 1), p);
  EXPECT_EQ(a.finish, FinishReason::kStop);
  EXPECT_EQ(a.tokens.back(), p.stop_token_ids[0]);
}

// R6: requests of every kind, each alone and all together, in a pool so small that they preempt.
TEST(Engine, NeighboursNeverChangeTokens) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    Rng rng(seed);
    EngineLimits limits;
    limits.num_pages = 24 + rng.next_below(60);
    limits.max_num_batched_tokens = 8 + rng.next_below(60);
    limits.max_prefill_chunk = rng.next_below(9);
    limits.prefix_cache = rng.next_below(2) == 0;
    limits.share_decoded_pages = rng.next_below(2) == 0;
    std::vector<std::vector<int32_t>> prompts;
    std::vector<SamplingParams> params;
    for (int i = 0; i < 12; ++i) {
      prompts.push_back(prompt_of(1 + rng.next_below(40), static_cast<int32_t>(rng.next_below(3))));
      const int64_t n = 1 + rng.next_below(40);
      params.push_back(i % 2 == 0 ? greedy(n) : drawn(n, seed));
      if (i % 3 == 0) params.back().repetition_penalty = 1.3f;
      if (i % 4 == 1) params.back().top_k = 5;
    }
    EngineBench together(limits);
    std::vector<std::shared_ptr<CollectedAnswer>> answers;
    for (size_t i = 0; i < prompts.size(); ++i) {
      answers.push_back(together.submit(prompts[i], params[i]));
      for (uint32_t n = rng.next_below(4); n > 0; --n)
        ASSERT_TRUE(together.core->step().ok());
    }
    together.run();

    EngineBench alone({.prefix_cache = false});
    for (size_t i = 0; i < prompts.size(); ++i) {
      const CollectedAnswer expected = alone.alone(prompts[i], params[i]);
      EXPECT_EQ(answers[i]->tokens, expected.tokens) << "request " << i;
      EXPECT_EQ(answers[i]->finish, expected.finish);
      EXPECT_EQ(answers[i]->events_after_end, 0);
    }
    EXPECT_EQ(together.core->stats().owned_pages, 0);
  }
}

TEST(Engine, PreemptedRequestsGoOnAsIfNothingHappened) {
  EngineBench bench({.num_pages = 20, .prefix_cache = false});
  std::vector<std::shared_ptr<CollectedAnswer>> answers;
  SamplingParams p = greedy(50);
  p.ignore_eos = true;
  for (int32_t i = 0; i < 6; ++i)
    answers.push_back(bench.submit(prompt_of(6, i), p));

  bench.run();

  EXPECT_GT(bench.core->stats().scheduler.num_preemptions, 0);
  EngineBench alone;
  for (int32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(answers[static_cast<size_t>(i)]->tokens, alone.alone(prompt_of(6, i), p).tokens);
  }
}

TEST(Engine, PrefixHitsGiveEqualTokens) {
  for (int64_t length : {4, 7, 8, 9, 64}) {
    EngineBench bench;
    const auto prompt = prompt_of(length, 2);

    const CollectedAnswer cold = bench.alone(prompt, greedy(10));
    const CollectedAnswer hit = bench.alone(prompt, greedy(10));

    EXPECT_EQ(cold.cached, 0);
    // All complete pages but the one that holds the last token.
    EXPECT_EQ(hit.cached, (length - 1) / FakeModel::kPageSize * FakeModel::kPageSize);
    EXPECT_EQ(hit.tokens, cold.tokens);
  }
}

TEST(Engine, SaltsSeparatePrefixes) {
  EngineBench bench;
  const auto prompt = prompt_of(20, 2);
  auto a = bench.submit(prompt, greedy(2), "tenant a");
  bench.run();
  auto b = bench.submit(prompt, greedy(2), "tenant b");
  bench.run();
  auto again = bench.submit(prompt, greedy(2), "tenant a");
  bench.run();

  EXPECT_EQ(b->cached, 0);
  EXPECT_EQ(again->cached, 16);
  EXPECT_EQ(b->tokens, a->tokens);
}

TEST(Engine, SharesDecodedPagesOnlyInBatchInvariantMode) {
  for (bool share : {false, true}) {
    EngineBench bench({.share_decoded_pages = share});
    SamplingParams p = greedy(20);
    p.ignore_eos = true;
    std::vector<int32_t> turn = prompt_of(8, 3);
    const CollectedAnswer first = bench.alone(turn, p);
    turn.insert(turn.end(), first.tokens.begin(), first.tokens.end());
    if (std::ranges::find(turn, FakeModel::kNanToken) != turn.end()) continue;

    const CollectedAnswer second = bench.alone(turn, greedy(1));

    EXPECT_EQ(second.cached, share ? 24 : 8);
  }
}

TEST(Engine, ChunksOfAPromptGiveTheSameTokens) {
  const auto prompt = prompt_of(100, 4);
  std::set<std::vector<int32_t>> outcomes;
  for (int64_t chunk : {0, 1, 3, 4, 5, 64}) {
    EngineBench bench({.max_prefill_chunk = chunk});
    outcomes.insert(bench.alone(prompt, drawn(10, 3)).tokens);
  }

  EXPECT_EQ(outcomes.size(), 1u);
}

TEST(Engine, SeedsAreReproducible) {
  EngineBench first;
  EngineBench second;
  (void)second.alone(prompt_of(3, 1), drawn(3, 1));  // other ids, other steps
  std::set<std::vector<int32_t>> outcomes;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const CollectedAnswer a = first.alone(prompt_of(5, 1), drawn(12, seed));
    EXPECT_EQ(second.alone(prompt_of(5, 1), drawn(12, seed)).tokens, a.tokens);
    outcomes.insert(a.tokens);
  }
  EXPECT_GT(outcomes.size(), 6u);
}

TEST(Engine, RequestsWithoutSeedDiffer) {
  EngineBench bench;
  SamplingParams p = drawn(12, 0);
  p.seed.reset();
  std::set<std::vector<int32_t>> outcomes;
  for (int i = 0; i < 5; ++i)
    outcomes.insert(bench.alone(prompt_of(5, 1), p).tokens);

  EXPECT_GT(outcomes.size(), 3u);
}

// R13: NaN in one request's context ends that one, and its pages are shared with nobody.
TEST(Engine, NonFiniteLogitsEndOnlyTheirRequest) {
  EngineBench bench;
  std::vector<int32_t> poisoned = prompt_of(20, 1);
  poisoned[6] = FakeModel::kNanToken;
  auto good = bench.submit(prompt_of(20, 1), greedy(10));
  auto bad = bench.submit(poisoned, greedy(10));

  bench.run();

  EXPECT_EQ(bad->finish, FinishReason::kNumericalError);
  EXPECT_TRUE(bad->tokens.empty());
  EXPECT_EQ(good->tokens, expected_greedy(prompt_of(20, 1), 10));
  EXPECT_EQ(bench.core->stats().numerical_errors, 1);
  const int64_t cached = bench.core->stats().cached_pages;
  auto again = bench.submit(poisoned, greedy(10));
  bench.run();
  EXPECT_EQ(again->cached, 4) << "the first page is that of the good request";
  EXPECT_EQ(bench.core->stats().cached_pages, cached);
}

TEST(Engine, PaddingIdsAreNeverEmitted) {
  EngineBench bench({.vocab = 60, .num_ids = 40});
  SamplingParams p = drawn(100, 1);
  p.temperature = 2.0f;
  p.top_p = 1.0f;
  p.ignore_eos = true;
  for (int32_t i = 0; i < 10; ++i) {
    for (int32_t token : bench.alone(prompt_of(3, i), p).tokens)
      EXPECT_LT(token, 40);
  }
}

TEST(Engine, StopStringsEndTheText) {
  auto tokenizer = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/micro-v3");
  ASSERT_TRUE(tokenizer.ok());
  EngineBench bench({.vocab = 4200, .num_ids = tokenizer->vocab_size(), .tokenizer = &*tokenizer});
  SamplingParams p = greedy(40);
  p.ignore_eos = true;
  const CollectedAnswer whole = bench.alone(prompt_of(5, 1), p);
  ASSERT_GT(whole.text.size(), 20u);
  EXPECT_EQ(whole.text, tokenizer->decode(whole.tokens, SpecialTokens::kSkip));
  size_t at = whole.text.size() / 2;
  while ((static_cast<unsigned char>(whole.text[at]) & 0xC0) == 0x80)
    ++at;
  size_t end = at + 5;
  while (end < whole.text.size() && (static_cast<unsigned char>(whole.text[end]) & 0xC0) == 0x80) {
    ++end;
  }
  p.stop = {whole.text.substr(at, end - at)};

  const CollectedAnswer cut = bench.alone(prompt_of(5, 1), p);

  EXPECT_EQ(cut.finish, FinishReason::kStop);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(p.stop[0])));
}

TEST(Engine, MinTokensHoldTheEndBack) {
  EngineBench bench;
  // A prompt whose greedy answer ends early.
  for (int32_t first = 0; first < 200; ++first) {
    const std::vector<int32_t> prompt = {first % 12 + 14, first / 12 + 14};
    const auto expected = expected_greedy(prompt, 10);
    if (expected.back() != kEnd || expected.size() > 5) continue;
    SamplingParams p = greedy(10);
    p.min_tokens = 8;

    const CollectedAnswer a = bench.alone(prompt, p);

    EXPECT_GE(a.tokens.size(), 8u);
    for (size_t i = 0; i < 8; ++i)
      EXPECT_NE(a.tokens[i], kEnd);
    return;
  }
  FAIL() << "no prompt ends early";
}

TEST(Engine, LogprobsComeWithTheTokens) {
  EngineBench bench;
  Request request;
  request.prompt = prompt_of(4, 1);
  request.sampling = greedy(3);
  request.sampling.ignore_eos = true;
  request.sampling.top_logprobs = 2;
  std::vector<int32_t> context = request.prompt;
  request.on_token = [&](const TokenEvent& e) {
    const auto logits = FakeModel::logits_after(context, 40);
    double sum = 0.0;
    for (float v : logits)
      sum += std::exp(static_cast<double>(v));
    EXPECT_NEAR(e.logprob,
                static_cast<double>(logits[static_cast<size_t>(e.token)]) - std::log(sum), 1e-5);
    ASSERT_EQ(e.top_logprobs.size(), 2u);
    EXPECT_EQ(e.top_logprobs[0].token, e.token);
    EXPECT_LE(e.top_logprobs[1].logprob, e.logprob);
    context.push_back(e.token);
  };
  ASSERT_TRUE(bench.core->submit(std::move(request)).ok());

  bench.run();

  EXPECT_EQ(context.size(), 7u);
}

}  // namespace
}  // namespace fathom
