// Answers that a constraint limits: what is drawn, how they end, and that nothing is lost when a
// sequence is preempted.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>

#include "fathom/runtime/engine.h"
#include "tests/support/fake_constraint.h"
#include "tests/support/fake_engine.h"

namespace fathom {
namespace {

using Next = FakeConstraint::Next;

struct Outcome {
  RequestId id = 0;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::kNone;
};

std::shared_ptr<Outcome> submit(EngineBench& bench,
                                std::vector<int32_t> prompt,
                                const SamplingParams& params,
                                std::shared_ptr<TokenConstraint> constraint) {
  auto out = std::make_shared<Outcome>();
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = params;
  request.constraint = std::move(constraint);
  request.on_token = [out](const TokenEvent& e) {
    if (e.token >= 0) {
      out->tokens.push_back(e.token);
      out->logprobs.push_back(e.logprob);
    }
    out->finish = e.finish;
  };
  out->id = bench.core->submit(std::move(request)).value();
  return out;
}

// The most probable of some tokens after others, by the definition.
int32_t best_of(const std::vector<int32_t>& tokens, const std::vector<int32_t>& allowed) {
  const auto logits = FakeModel::logits_after(tokens, 40);
  return *std::ranges::max_element(allowed, {}, [&](int32_t t) { return logits[size_t(t)]; });
}

TEST(Constraint, GreedyTakesTheBestOfWhatIsAllowed) {
  EngineBench bench;
  const std::vector<int32_t> allowed = {3, 17, 31, 32, 39};
  auto c = constraint_of([&](const auto&) { return Next{.allowed = allowed}; });
  SamplingParams p = greedy(12);
  p.repetition_penalty = 1.0f;

  auto out = submit(bench, prompt_of(9, 1), p, c);
  auto free = bench.submit(prompt_of(9, 2), greedy(12));
  bench.run();

  std::vector<int32_t> tokens = prompt_of(9, 1);
  for (const int32_t token : out->tokens) {
    EXPECT_EQ(token, best_of(tokens, allowed));
    tokens.push_back(token);
  }
  EXPECT_EQ(out->tokens.size(), 12u);
  EXPECT_EQ(c->accepted, out->tokens);
  EXPECT_EQ(c->words, 2u);
  EXPECT_EQ(free->tokens, expected_greedy(prompt_of(9, 2), 12));
}

TEST(Constraint, StructureIsNotDrawnAndPayloadIs) {
  const std::vector<int32_t> allowed = {3, 17, 31, 32, 39};
  for (const ConstraintPlace place : {ConstraintPlace::kStructure, ConstraintPlace::kPayload}) {
    int unlikely = 0;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      EngineBench bench;
      auto c = constraint_of([&](const auto&) { return Next{place, allowed}; });
      SamplingParams p = drawn(10, seed);
      p.temperature = 2.0f;
      p.top_p = 1.0f;

      auto out = submit(bench, prompt_of(9, 1), p, c);
      bench.run();

      std::vector<int32_t> tokens = prompt_of(9, 1);
      for (const int32_t token : out->tokens) {
        EXPECT_TRUE(std::ranges::count(allowed, token) == 1) << "seed " << seed;
        unlikely += token != best_of(tokens, allowed) ? 1 : 0;
        tokens.push_back(token);
      }
    }
    if (place == ConstraintPlace::kStructure) {
      EXPECT_EQ(unlikely, 0);
    } else {
      EXPECT_GT(unlikely, 10);
    }
  }
}

TEST(Constraint, WithoutAMaskAnythingMayCome) {
  EngineBench bench;
  auto c = constraint_of([](const auto&) { return Next{ConstraintPlace::kFree, {}}; });

  auto out = submit(bench, prompt_of(9, 1), greedy(12), c);
  bench.run();

  EXPECT_EQ(out->tokens, expected_greedy(prompt_of(9, 1), 12));
  EXPECT_EQ(c->accepted, out->tokens);
}

TEST(Constraint, LogprobsAreThoseOfTheRawLogits) {
  EngineBench bench;
  auto c = constraint_of([](const auto&) { return Next{.allowed = {20}}; });
  SamplingParams p = greedy(1);
  p.top_logprobs = 2;

  auto out = submit(bench, prompt_of(9, 1), p, c);
  bench.run();

  const auto logits = FakeModel::logits_after(prompt_of(9, 1), 40);
  double sum = 0;
  for (const float x : logits)
    sum += std::exp(static_cast<double>(x));
  ASSERT_EQ(out->tokens, std::vector<int32_t>{20});
  EXPECT_NEAR(out->logprobs[0], logits[20] - std::log(sum), 1e-5);
}

TEST(Constraint, TheEndComesWhereTheGrammarEndsWhateverElseIsAskedFor) {
  EngineBench bench;
  const auto rule = [](const std::vector<int32_t>& accepted) {
    return accepted.size() < 3 ? Next{.allowed = {20, kEnd}} : Next{.allowed = {kEnd}};
  };
  SamplingParams p = greedy(50);
  p.min_tokens = 30;
  p.ignore_eos = true;
  p.logit_bias = {{20, -100.0f}};
  auto c = constraint_of(rule);
  c->refuses = kEnd;  // of an end token that is no matter

  auto out = submit(bench, prompt_of(9, 1), p, c);
  bench.run();

  EXPECT_EQ(out->tokens, (std::vector<int32_t>{20, 20, 20, kEnd}));
  EXPECT_EQ(out->finish, FinishReason::kStop);
}

TEST(Constraint, IgnoredEndsAreTokensWhereItIsFreeAndNotDrawnWhereItIsNot) {
  EngineBench bench;
  // Free text that likes the end, then a part that may end from its second token on and goes no
  // further than its fourth.
  const auto rule = [](const std::vector<int32_t>& accepted) {
    if (accepted.size() < 3) return Next{ConstraintPlace::kFree, {}};
    if (accepted.size() == 3) return Next{.allowed = {20}};
    return accepted.size() < 7 ? Next{.allowed = {20, kEnd}} : Next{.allowed = {kEnd}};
  };
  SamplingParams p = greedy(50);
  p.ignore_eos = true;
  p.logit_bias = {{kEnd, 100.0f}};
  auto c = constraint_of(rule);

  auto out = submit(bench, prompt_of(9, 1), p, c);
  bench.run();

  EXPECT_EQ(out->tokens, (std::vector<int32_t>{kEnd, kEnd, kEnd, 20, 20, 20, 20, kEnd}));
  EXPECT_EQ(out->finish, FinishReason::kStop);
  EXPECT_EQ(c->accepted, out->tokens);
}

TEST(Constraint, ATokenThatIsRefusedOrNoTokenAtAllIsAFaultOfItsOwn) {
  EngineBench bench;
  auto refusing = constraint_of([](const auto&) { return Next{.allowed = {20}}; });
  refusing->refuses = 20;
  auto empty = constraint_of([](const std::vector<int32_t>& accepted) {
    return accepted.size() < 2 ? Next{.allowed = {21}} : Next{};
  });

  auto a = submit(bench, prompt_of(9, 1), greedy(9), refusing);
  auto b = submit(bench, prompt_of(9, 2), greedy(9), empty);
  auto other = bench.submit(prompt_of(9, 3), greedy(9));
  bench.run();

  EXPECT_EQ(a->finish, FinishReason::kConstraintFault);
  EXPECT_EQ(a->tokens, std::vector<int32_t>{20});
  EXPECT_EQ(b->finish, FinishReason::kConstraintFault);
  EXPECT_EQ(b->tokens, (std::vector<int32_t>{21, 21}));
  EXPECT_EQ(other->tokens, expected_greedy(prompt_of(9, 3), 9));
  EXPECT_EQ(bench.core->stats().numerical_errors, 0);
  EXPECT_EQ(bench.core->stats().owned_pages, 0);
  EXPECT_EQ(finish_reason_name(a->finish), "constraint_fault");
  EXPECT_EQ(finish_status(a->finish).code(), StatusCode::kInternal);
}

TEST(Constraint, PreemptionKeepsItsState) {
  // Every third token is of another kind, so that a state that is lost shows.
  const auto rule = [](const std::vector<int32_t>& accepted) {
    return accepted.size() % 3 == 2 ? Next{.allowed = {20, 21}} : Next{.allowed = {30, 31, 32, 33}};
  };
  const auto run = [&](int64_t num_pages, int64_t& preemptions) {
    EngineBench bench({.num_pages = num_pages, .prefix_cache = false});
    std::vector<std::shared_ptr<Outcome>> out;
    std::vector<std::vector<int32_t>> answers;
    for (int32_t i = 0; i < 4; ++i)
      out.push_back(submit(bench, prompt_of(10, i), greedy(40), constraint_of(rule)));
    bench.run();
    for (const auto& o : out)
      answers.push_back(o->tokens);
    preemptions = bench.core->stats().scheduler.num_preemptions;
    return answers;
  };
  int64_t none = 0;
  int64_t some = 0;

  const auto plenty = run(200, none);
  const auto scarce = run(20, some);

  EXPECT_EQ(none, 0);
  EXPECT_GT(some, 0);
  EXPECT_EQ(plenty, scarce);
  EXPECT_EQ(plenty[0].size(), 40u);
}

}  // namespace
}  // namespace fathom
