// Log-probabilities of prompts, against the definition, whatever else runs.
#include <cmath>
#include <gtest/gtest.h>
#include <memory>

#include "fathom/runtime/engine.h"
#include "tests/support/fake_engine.h"

namespace fathom {
namespace {

struct Scored {
  std::vector<PromptLogprobs> prompt;
  std::vector<int32_t> tokens;
  int deliveries = 0;
  int64_t cached = -1;
  FinishReason finish = FinishReason::kNone;
};

std::shared_ptr<Scored> submit_scored(EngineBench& bench,
                                      std::vector<int32_t> prompt,
                                      int top,
                                      const SamplingParams& params) {
  auto scored = std::make_shared<Scored>();
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = params;
  request.prompt_logprobs = top;
  request.on_token = [scored](const TokenEvent& e) {
    if (e.token >= 0) scored->tokens.push_back(e.token);
    if (e.prompt_logprobs != nullptr) {
      EXPECT_EQ(e.index, 0);
      ++scored->deliveries;
      scored->prompt = *e.prompt_logprobs;
    }
    scored->cached = e.cached_tokens;
    scored->finish = e.finish;
  };
  EXPECT_TRUE(bench.core->submit(std::move(request)).ok());
  return scored;
}

void expect_by_definition(const Scored& scored, const std::vector<int32_t>& prompt, size_t top) {
  ASSERT_EQ(scored.prompt.size(), prompt.size() - 1);
  EXPECT_EQ(scored.deliveries, 1);
  for (size_t i = 1; i < prompt.size(); ++i) {
    const auto before = std::vector<int32_t>(prompt.begin(), prompt.begin() + static_cast<long>(i));
    const auto logits = FakeModel::logits_after(before, 40);
    double sum = 0;
    int32_t rank = 1;
    for (const float x : logits) {
      sum += std::exp(static_cast<double>(x));
      rank += x > logits[static_cast<size_t>(prompt[i])] ? 1 : 0;
    }
    const PromptLogprobs& found = scored.prompt[i - 1];
    const auto logprob = [&](int32_t token) {
      return static_cast<double>(logits[static_cast<size_t>(token)]) - std::log(sum);
    };
    EXPECT_EQ(found.token.token, prompt[i]) << i;
    EXPECT_NEAR(found.token.logprob, logprob(prompt[i]), 1e-5) << i;
    EXPECT_EQ(found.rank, rank) << i;
    ASSERT_EQ(found.top.size(), top) << i;
    for (size_t j = 0; j < top; ++j) {
      EXPECT_NEAR(found.top[j].logprob, logprob(found.top[j].token), 1e-5);
      EXPECT_LE(found.top[j].logprob, found.top[j == 0 ? 0 : j - 1].logprob);
    }
  }
}

TEST(PromptLogprobs, AreThoseOfTheRawLogitsAfterEachToken) {
  EngineBench bench;
  const auto prompt = prompt_of(45, 3);
  (void)bench.alone(prompt, greedy(2));  // its pages are known now, and must not be used

  auto scored = submit_scored(bench, prompt, 3, greedy(5));
  bench.run();

  expect_by_definition(*scored, prompt, 3);
  EXPECT_EQ(scored->cached, 0);
  EXPECT_EQ(scored->tokens, expected_greedy(prompt, 5));
}

TEST(PromptLogprobs, OthersThatRunMeanwhileChangeNothing) {
  EngineBench bench({.num_pages = 200, .max_num_seqs = 4});
  const auto prompt = prompt_of(31, 3);
  std::vector<std::shared_ptr<CollectedAnswer>> others;
  for (int32_t i = 0; i < 6; ++i)
    others.push_back(bench.submit(prompt_of(9 + i, i), greedy(15)));

  auto scored = submit_scored(bench, prompt, 0, greedy(5));
  auto more = submit_scored(bench, prompt_of(12, 5), 20, drawn(3, 7));
  bench.run();

  expect_by_definition(*scored, prompt, 0);
  expect_by_definition(*more, prompt_of(12, 5), 20);
  for (int32_t i = 0; i < 6; ++i)
    EXPECT_EQ(others[static_cast<size_t>(i)]->tokens, expected_greedy(prompt_of(9 + i, i), 15));
}

TEST(PromptLogprobs, PreemptionKeepsWhatIsThere) {
  // Full once the scored prompt is admitted: two decodes that grow drive it out half way.
  EngineBench bench({.num_pages = 18, .prefix_cache = false});
  SamplingParams long_one = greedy(30);
  long_one.ignore_eos = true;
  auto old = bench.submit(prompt_of(10, 1), long_one);
  auto other = bench.submit(prompt_of(10, 2), long_one);
  ASSERT_TRUE(bench.core->step().ok());
  const auto prompt = prompt_of(40, 3);
  auto scored = submit_scored(bench, prompt, 1, greedy(8));
  bench.run();

  EXPECT_GT(bench.core->stats().scheduler.num_preemptions, 0);
  expect_by_definition(*scored, prompt, 1);
  EXPECT_EQ(scored->tokens, expected_greedy(prompt, 8));
}

TEST(PromptLogprobs, OfOneTokenAreNoneAndOfNanAnError) {
  EngineBench bench;
  auto one = submit_scored(bench, {15}, 2, greedy(2));
  std::vector<int32_t> poisoned = prompt_of(20, 1);
  poisoned[6] = FakeModel::kNanToken;
  auto bad = submit_scored(bench, poisoned, 2, greedy(2));
  bench.run();

  EXPECT_EQ(one->deliveries, 1);
  EXPECT_TRUE(one->prompt.empty());
  EXPECT_EQ(bad->finish, FinishReason::kNumericalError);
  EXPECT_EQ(bad->deliveries, 0);
  EXPECT_EQ(bench.core->stats().owned_pages, 0);
}

TEST(Admissible, RefusesWhatSubmitRefusesAndNothingElse) {
  EngineBench bench({.num_pages = 20});
  const auto says = [&](Request request, std::string_view text) {
    const Status status = bench.core->admissible(request);
    const Status submitted = bench.core->submit(std::move(request)).status();
    EXPECT_EQ(status.message(), submitted.message());
    return status.message().find(text) != std::string::npos;
  };
  const auto request = [](std::vector<int32_t> prompt, const SamplingParams& params) {
    Request r;
    r.prompt = std::move(prompt);
    r.sampling = params;
    return r;
  };
  EXPECT_TRUE(says(request({}, greedy(1)), "prompt is empty"));
  EXPECT_TRUE(says(request({40}, greedy(1)), "prompt[0] is 40"));
  EXPECT_TRUE(says(request({1}, greedy(256)), "context_length_exceeded"));
  EXPECT_TRUE(says(request({1}, greedy(100)), "too_large_for_pool"));
  Request scored = request({1}, greedy(1));
  scored.prompt_logprobs = 21;
  EXPECT_TRUE(says(scored, "prompt_logprobs is 21"));
  SamplingParams hot = greedy(1);
  hot.temperature = 3;
  EXPECT_TRUE(says(request({1}, hot), "temperature"));
  EXPECT_TRUE(bench.core->admissible(request({1}, greedy(79))).ok());
}

TEST(Engine, SaysWhenTheFirstChunkOfAPromptWentIntoAStep) {
  EngineBench bench({.max_num_seqs = 1});
  std::vector<int64_t> started;
  const auto submit = [&](int64_t tokens) {
    Request request;
    request.prompt = prompt_of(100, 1);
    request.sampling = greedy(tokens);
    request.sampling.ignore_eos = true;
    request.on_token = [&](const TokenEvent& e) {
      if (e.finish != FinishReason::kNone) started.push_back(e.started_ns);
    };
    EXPECT_TRUE(bench.core->submit(std::move(request)).ok());
  };
  submit(1);
  submit(1);
  bench.clock.advance_ns(9);
  ASSERT_TRUE(bench.core->step().ok());
  bench.clock.advance_ns(100);
  ASSERT_TRUE(bench.core->step().ok());
  bench.clock.advance_ns(1000);
  bench.run();

  EXPECT_EQ(started, (std::vector<int64_t>{10, 1110}));
}

}  // namespace
}  // namespace fathom
