// That drafts change nothing but the number of steps: the fake model's tokens are digests of all
// tokens before them, read back from its pages, so a row that is wrong or stale changes them.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <memory>

#include "fathom/runtime/draft/ngram_proposer.h"
#include "tests/support/fake_constraint.h"
#include "tests/support/fake_engine.h"

namespace fathom {
namespace {

// Guesses of every kind: right ones (of greedy requests), wrong ones, nonsense, more than there is
// room for.
class MixedProposer final : public Proposer {
 public:
  explicit MixedProposer(uint64_t seed, double right = 0.6) : rng_(seed), right_(right) {}

  Status propose(Executor&, std::span<const DraftPlace> places) override {
    for (const DraftPlace& place : places) {
      EXPECT_GE(place.most, 1);
      EXPECT_TRUE(place.sequence->drafts.empty());
      std::vector<int32_t> tokens = place.sequence->tokens;
      const int64_t count = rng_.next_below(static_cast<uint32_t>(place.most) + 1);
      for (int64_t i = 0; i < count; ++i) {
        const auto logits = FakeModel::logits_after(tokens, 40);
        auto token = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
        if (rng_.next_uniform() > right_) token = static_cast<int32_t>(rng_.next_below(44)) - 2;
        place.sequence->drafts.push_back(token);
        tokens.push_back(token);
      }
      known_[place.sequence->id] = true;
    }
    return {};
  }

  void forget(RequestId id) override { known_.erase(id); }

  size_t num_known() const { return known_.size(); }

 private:
  Rng rng_;
  double right_;
  std::map<RequestId, bool> known_;
};

// A prompt that says the same again and again, as far as a digest can be led to.
std::vector<int32_t> looping_prompt(int64_t length, int32_t first) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i)
    prompt.push_back(14 + (first + static_cast<int32_t>(i % 5)) % 12);
  return prompt;
}

TEST(Drafting, RightGuessesSaveSteps) {
  MixedProposer right(1, 1.1);
  EngineBench plain;
  EngineBench drafted({.max_queries = 5, .proposer = &right});
  SamplingParams p = greedy(60);
  p.ignore_eos = true;

  const CollectedAnswer expected = plain.alone(prompt_of(9, 1), p);
  const CollectedAnswer answer = drafted.alone(prompt_of(9, 1), p);

  EXPECT_EQ(answer.tokens, expected.tokens);
  const CoreStats stats = drafted.core->stats();
  EXPECT_EQ(stats.accepted_tokens, stats.drafted_tokens);
  EXPECT_EQ(stats.num_steps + stats.accepted_tokens, plain.core->stats().num_steps);
  EXPECT_GT(stats.accepted_tokens, 30);
  EXPECT_EQ(right.num_known(), 0u);
}

// Requests of every kind together, in pools so small that they preempt, with every number of
// drafts.
TEST(Drafting, GuessesNeverChangeTokens) {
  int64_t accepted = 0;
  int64_t preemptions = 0;
  int64_t hits = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    Rng rng(seed);
    EngineLimits limits;
    limits.num_pages = 24 + rng.next_below(60);
    limits.max_num_batched_tokens = 8 + rng.next_below(60);
    limits.max_prefill_chunk = rng.next_below(9);
    limits.prefix_cache = rng.next_below(4) != 0;
    limits.share_decoded_pages = rng.next_below(2) == 0;
    limits.max_queries = 2 + static_cast<int64_t>(seed % 5);
    MixedProposer mixed(seed);
    NgramProposer ngram;
    limits.proposer = seed % 2 == 0 ? static_cast<Proposer*>(&mixed) : &ngram;
    std::vector<std::vector<int32_t>> prompts;
    std::vector<SamplingParams> params;
    for (int i = 0; i < 12; ++i) {
      const auto first = static_cast<int32_t>(rng.next_below(3));
      const int64_t length = 1 + rng.next_below(40);
      prompts.push_back(i % 2 == 0 ? prompt_of(length, first) : looping_prompt(length, first));
      const int64_t n = 1 + rng.next_below(40);
      params.push_back(i % 3 != 2 ? greedy(n) : drawn(n, seed));
      if (i % 5 == 4) params.back().repetition_penalty = 1.3f;
      if (i % 4 == 1) params.back().ignore_eos = true;
      if (i % 4 == 2) params.back().min_tokens = n / 2;
      if (i % 6 == 3) params.back().stop_token_ids = {20, 21};
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
      hits += answers[i]->cached > 0 ? 1 : 0;
    }
    const CoreStats stats = together.core->stats();
    EXPECT_EQ(stats.owned_pages, 0);
    EXPECT_LE(stats.accepted_tokens, stats.drafted_tokens);
    EXPECT_EQ(mixed.num_known(), 0u);
    accepted += stats.accepted_tokens;
    preemptions += stats.scheduler.num_preemptions;
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(preemptions, 20);
  EXPECT_GT(hits, 20);
}

TEST(Drafting, LogprobsAreThoseOfTheSamePlaces) {
  const auto run = [](Proposer* proposer) {
    EngineBench bench({.max_queries = proposer == nullptr ? 1 : 4, .proposer = proposer});
    std::vector<float> numbers;
    Request request;
    request.prompt = prompt_of(7, 2);
    request.sampling = greedy(30);
    request.sampling.ignore_eos = true;
    request.sampling.top_logprobs = 3;
    request.on_token = [&](const TokenEvent& e) {
      numbers.push_back(e.logprob);
      for (const TokenLogprob& top : e.top_logprobs) {
        numbers.push_back(static_cast<float>(top.token));
        numbers.push_back(top.logprob);
      }
    };
    EXPECT_TRUE(bench.core->submit(std::move(request)).ok());
    bench.run();
    return numbers;
  };
  MixedProposer mixed(3);

  const std::vector<float> numbers = run(&mixed);

  EXPECT_EQ(numbers.size(), 30u * 7);
  EXPECT_EQ(numbers, run(nullptr));
}

TEST(Drafting, StopStringsEndTheTextAmidDrafts) {
  auto tokenizer = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/micro-v3");
  ASSERT_TRUE(tokenizer.ok());
  const EngineLimits plain{
      .vocab = 4200, .num_ids = tokenizer->vocab_size(), .tokenizer = &*tokenizer};
  SamplingParams p = greedy(40);
  p.ignore_eos = true;
  const CollectedAnswer whole = EngineBench(plain).alone(prompt_of(5, 1), p);
  for (size_t cut = 1; cut + 3 < whole.text.size(); cut += 7) {
    p.stop = {whole.text.substr(cut, 3)};
    const CollectedAnswer expected = EngineBench(plain).alone(prompt_of(5, 1), p);

    // The answer itself, as a proposer that knows it would have it.
    struct Known final : Proposer {
      Status propose(Executor&, std::span<const DraftPlace> places) override {
        for (const DraftPlace& place : places) {
          const auto at = static_cast<size_t>(place.sequence->num_generated());
          for (size_t i = at; i < std::min(at + size_t(place.most), answer.size()); ++i)
            place.sequence->drafts.push_back(answer[i]);
        }
        return {};
      }

      std::vector<int32_t> answer;
    } known;

    known.answer = whole.tokens;
    EngineLimits drafted = plain;
    drafted.max_queries = 6;
    drafted.proposer = &known;
    EngineBench bench(drafted);

    const CollectedAnswer answer = bench.alone(prompt_of(5, 1), p);

    EXPECT_EQ(answer.tokens, expected.tokens) << p.stop[0];
    EXPECT_EQ(answer.text, expected.text);
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_EQ(answer.events_after_end, 0);
  }
}

TEST(Drafting, CountsDraftsByTheirPlace) {
  MixedProposer mixed(5);
  EngineBench bench({.max_queries = 4, .proposer = &mixed});
  SamplingParams p = greedy(80);
  p.ignore_eos = true;
  int64_t drafted = 0;
  int64_t accepted = 0;
  Request request;
  request.prompt = prompt_of(6, 2);
  request.sampling = p;
  request.on_token = [&](const TokenEvent& e) {
    drafted = e.drafted_tokens;
    accepted = e.accepted_tokens;
  };
  ASSERT_TRUE(bench.core->submit(std::move(request)).ok());
  bench.run();

  const CoreStats stats = bench.core->stats();

  EXPECT_EQ(stats.most_drafts, 3);
  EXPECT_GT(stats.num_drafts, 10);
  EXPECT_EQ(stats.drafted_tokens, drafted);
  EXPECT_EQ(stats.accepted_tokens, accepted);
  int64_t sum = 0;
  for (const int64_t count : stats.accepted_at)
    sum += count;
  EXPECT_EQ(sum, accepted);
  EXPECT_GE(stats.accepted_at[0], stats.accepted_at[1]);
  EXPECT_GT(stats.accepted_at[2], 0);
  EXPECT_EQ(stats.accepted_at[3], 0);
}

// Time passes with the tokens of each step: guesses that are right one time in ten lose, and stop;
// right ones go on.
TEST(Drafting, StopsWhereItLosesTime) {
  const auto run = [](double right, int64_t batch) {
    MixedProposer mixed(5, right);
    EngineBench bench({.max_queries = 5, .proposer = &mixed, .adaptive_drafts = true});
    bench.model.on_forward = [&](int64_t tokens) { bench.clock.advance_ns(1000 + 400 * tokens); };
    SamplingParams p = greedy(200);
    p.ignore_eos = true;
    std::vector<std::shared_ptr<CollectedAnswer>> answers;
    for (int32_t i = 0; i < batch; ++i)
      answers.push_back(bench.submit(prompt_of(6, i), p));
    bench.run();
    for (int32_t i = 0; i < batch; ++i)
      EXPECT_EQ(answers[size_t(i)]->tokens, EngineBench().alone(prompt_of(6, i), p).tokens);
    return bench.core->stats();
  };
  const CoreStats bad = run(0.1, 1);
  EXPECT_GT(bad.draft_pauses, 1);
  EXPECT_LT(bad.num_drafts, 60);

  const CoreStats good = run(1.1, 1);
  EXPECT_EQ(good.draft_pauses, 0);
  EXPECT_GT(good.accepted_tokens, 100);
  EXPECT_EQ(good.draft_batch_limit, -1);

  const CoreStats middling = run(0.6, 1);
  EXPECT_GE(middling.draft_batch_limit, 1);
  const CoreStats many = run(0.6, 8);
  EXPECT_LT(static_cast<double>(many.num_drafts) / 8,
            0.7 * static_cast<double>(middling.num_drafts))
      << "beside so many others little is drafted";
}

// The same guess at each place.
class OneTokenProposer final : public Proposer {
 public:
  Status propose(Executor&, std::span<const DraftPlace> places) override {
    for (const DraftPlace& place : places)
      place.sequence->drafts.assign(static_cast<size_t>(place.most), 20);
    return {};
  }
};

TEST(Drafting, SimulatedAcceptanceTakesItsShareOfAnyGuesses) {
  OneTokenProposer proposer;
  EngineBench bench({.max_queries = 4, .proposer = &proposer, .simulated_acceptance = 0.7});
  SamplingParams p = greedy(200);
  p.ignore_eos = true;

  for (int32_t i = 0; i < 20; ++i)
    EXPECT_EQ(bench.alone(prompt_of(6, i), p).tokens.size(), 200U);

  const CoreStats stats = bench.core->stats();
  ASSERT_GT(stats.num_drafts, 500);
  const auto share = [&](size_t place) {
    const int64_t reached = place == 0 ? stats.num_drafts : stats.accepted_at[place - 1];
    return static_cast<double>(stats.accepted_at[place]) / static_cast<double>(reached);
  };
  for (size_t place = 0; place < 3; ++place)
    EXPECT_NEAR(share(place), 0.7, 0.08) << "place " << place;
}

// Guesses among a few tokens, whatever is allowed.
class FewTokensProposer final : public Proposer {
 public:
  Status propose(Executor&, std::span<const DraftPlace> places) override {
    constexpr int32_t kTokens[] = {20, 21, 30, 31, kEnd};
    for (const DraftPlace& place : places) {
      for (int64_t i = 0; i < place.most; ++i)
        place.sequence->drafts.push_back(kTokens[rng_.next_below(5)]);
    }
    return {};
  }

 private:
  Rng rng_{9};
};

// Every third token is of another kind, in the middle it is free, and the end comes by itself.
FakeConstraint::Next kinds_of_places(const std::vector<int32_t>& accepted) {
  using Next = FakeConstraint::Next;
  if (accepted.size() >= 40) return Next{.allowed = {kEnd}};
  if (accepted.size() / 10 == 1) return Next{ConstraintPlace::kFree, {}};
  if (accepted.size() % 3 == 2) return Next{ConstraintPlace::kStructure, {30, 31}};
  return Next{.allowed = {20, 21, kEnd}};
}

TEST(Drafting, ConstraintsMaskEachPlace) {
  int64_t accepted = 0;
  int64_t rolled_back = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const auto run = [&](Proposer* proposer) {
      EngineBench bench({.num_pages = 30,
                         .prefix_cache = false,
                         .max_queries = proposer == nullptr ? 1 : 4,
                         .proposer = proposer});
      std::vector<std::vector<int32_t>> answers(5);
      std::vector<FinishReason> finishes(5);
      std::vector<std::shared_ptr<FakeConstraint>> constraints;
      for (size_t i = 0; i < answers.size(); ++i) {
        constraints.push_back(constraint_of(kinds_of_places));
        Request request;
        request.prompt = prompt_of(8, static_cast<int32_t>(seed + i));
        request.sampling = i % 2 == 0 ? greedy(60) : drawn(60, seed + i);
        request.sampling.min_tokens = i % 3 == 2 ? 30 : 0;
        request.sampling.ignore_eos = i % 3 == 1;
        request.constraint = constraints.back();
        request.on_token = [&answers, &finishes, i](const TokenEvent& e) {
          if (e.token >= 0) answers[i].push_back(e.token);
          finishes[i] = e.finish;
        };
        EXPECT_TRUE(bench.core->submit(std::move(request)).ok());
      }
      bench.run();
      for (size_t i = 0; i < answers.size(); ++i) {
        EXPECT_EQ(finishes[i], FinishReason::kStop);
        std::vector<int32_t> taken = constraints[i]->accepted;
        taken.resize(std::min(taken.size(), answers[i].size()));
        EXPECT_EQ(taken, answers[i]) << "what was followed as a draft is taken back";
        rolled_back += constraints[i]->rolled_back;
      }
      accepted += bench.core->stats().accepted_tokens;
      return answers;
    };
    FewTokensProposer few;

    const auto answers = run(&few);

    EXPECT_EQ(answers, run(nullptr)) << "seed " << seed;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(rolled_back, accepted);
}

TEST(Drafting, AnErrorOfTheProposerIsAnEngineFault) {
  struct Broken final : Proposer {
    Status propose(Executor&, std::span<const DraftPlace>) override {
      return internal_error("injected");
    }
  } broken;

  EngineBench bench({.max_queries = 3, .proposer = &broken});
  auto answer = bench.submit(prompt_of(5, 1), greedy(5));
  ASSERT_TRUE(bench.core->step().ok());

  const Status s = bench.core->step();

  EXPECT_FALSE(s.ok());
  EXPECT_EQ(answer->finish, FinishReason::kEngineFault);
  EXPECT_EQ(bench.core->stats().owned_pages, 0);
}

}  // namespace
}  // namespace fathom
