// What the engine does around the steps of a GPU: answers that a mask limits, in captured graphs
// and out of them, and tokens that are told while the next step runs. Part of engine_gpu_test.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "fathom/api/engine.h"
#include "tests/gpu/gpu_test_tree.h"
#include "tests/support/fake_constraint.h"

namespace fathom {
namespace {

std::unique_ptr<Engine> load_engine(bool graphs) {
  EngineOptions options;
  options.model = gpu_test_tree() + "/models/tiny-v3-nvfp4";
  EXPECT_TRUE(set_option(options, "device", "cuda").ok());
  options.threads = 2;
  options.pin_threads = false;
  options.max_num_seqs = 8;
  options.max_model_len = 512;
  options.cuda_graphs = graphs;
  Result<std::unique_ptr<Engine>> engine = Engine::load(options);
  FATHOM_CHECK(engine.ok(), engine.ok() ? "" : engine.status().message());
  return std::move(engine).value();
}

struct Answer {
  RequestId id = 0;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> best;  // of each token
  std::vector<FinishReason> ends;
};

/// Five token ids that step `place` of answer `which` may give.
std::vector<int32_t> allowed_at(size_t which, size_t place) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < 5; ++i)
    ids.push_back(static_cast<int32_t>((977 * which + 131 * place + 61 * i) % 1000 + 300));
  return ids;
}

std::shared_ptr<Answer> submit(Engine& engine,
                               const SamplingParams& params,
                               std::shared_ptr<TokenConstraint> constraint) {
  auto answer = std::make_shared<Answer>();
  Request request;
  request.prompt =
      engine.tokenizer()->encode("Once upon a time", {.add_bos = AddBos::kAsConfigured});
  request.sampling = params;
  request.constraint = std::move(constraint);
  request.on_token = [answer](const TokenEvent& e) {
    if (e.token >= 0) {
      answer->tokens.push_back(e.token);
      answer->logprobs.push_back(e.logprob);
      answer->best.emplace_back(e.top_logprobs.begin(), e.top_logprobs.end());
    }
    if (e.finish != FinishReason::kNone) answer->ends.push_back(e.finish);
  };
  const Result<RequestId> id = engine.submit(std::move(request));
  FATHOM_CHECK(id.ok(), id.ok() ? "" : id.status().message());
  answer->id = *id;
  return answer;
}

void run_to_end(Engine& engine) {
  while (!engine.idle()) {
    const Status stepped = engine.step();
    ASSERT_TRUE(stepped.ok()) << stepped.message();
  }
}

SamplingParams params_of(size_t which) {
  SamplingParams p;
  p.max_tokens = 20;
  p.ignore_eos = true;
  p.temperature = which % 2 == 0 ? 0.0f : 0.9f;
  p.seed = which;
  return p;
}

// Answers 0 to 5, of which the first four are limited.
std::vector<std::shared_ptr<Answer>> limited_and_free(Engine& engine) {
  std::vector<std::shared_ptr<Answer>> answers;
  for (size_t which = 0; which < 6; ++which) {
    std::shared_ptr<TokenConstraint> constraint;
    if (which < 4) {
      constraint = constraint_of([which](const std::vector<int32_t>& accepted) {
        return FakeConstraint::Next{.allowed = allowed_at(which, accepted.size())};
      });
    }
    answers.push_back(submit(engine, params_of(which), std::move(constraint)));
  }
  run_to_end(engine);
  return answers;
}

TEST(Masks, LimitWhatIsDrawnInGraphsAsInLaunches) {
  const auto graphed = load_engine(true);
  const auto launched = load_engine(false);

  const auto first = limited_and_free(*graphed);
  const auto replayed = limited_and_free(*graphed);
  const auto expected = limited_and_free(*launched);

  for (size_t which = 0; which < 6; ++which) {
    ASSERT_EQ(expected[which]->tokens.size(), 20u);
    EXPECT_EQ(first[which]->tokens, expected[which]->tokens) << which;
    EXPECT_EQ(replayed[which]->tokens, expected[which]->tokens) << which;
    for (size_t place = 0; which < 4 && place < 20; ++place)
      EXPECT_EQ(std::ranges::count(allowed_at(which, place), expected[which]->tokens[place]), 1);
  }
}

// A bias of nothing has the raw logits of a row brought to the host.
TEST(Logprobs, AreTheSameInGraphsInLaunchesAndOnTheHost) {
  const auto graphed = load_engine(true);
  const auto launched = load_engine(false);
  for (const float temperature : {0.0f, 2.0f}) {
    SCOPED_TRACE(temperature);
    SamplingParams p = params_of(3);
    p.temperature = temperature;
    p.top_logprobs = kMaxTopLogprobs;
    SamplingParams biased = p;
    biased.logit_bias.emplace_back(7, 0.0f);

    const auto answer = submit(*graphed, p, nullptr);
    run_to_end(*graphed);
    const auto again = submit(*launched, p, nullptr);
    run_to_end(*launched);
    const auto on_host = submit(*graphed, biased, nullptr);
    run_to_end(*graphed);

    EXPECT_EQ(answer->tokens, again->tokens);
    EXPECT_EQ(answer->logprobs, again->logprobs);
    ASSERT_EQ(answer->tokens, on_host->tokens);
    int64_t others = 0;  // tokens that are none of the best
    for (size_t i = 0; i < answer->tokens.size(); ++i) {
      EXPECT_NEAR(answer->logprobs[i], on_host->logprobs[i], 1e-5) << i;
      ASSERT_EQ(answer->best[i].size(), on_host->best[i].size());
      for (size_t k = 0; k < answer->best[i].size(); ++k) {
        EXPECT_EQ(answer->best[i][k].token, on_host->best[i][k].token) << i << ", " << k;
        EXPECT_NEAR(answer->best[i][k].logprob, on_host->best[i][k].logprob, 1e-5) << i;
      }
      others += std::ranges::count(answer->best[i], answer->tokens[i], &TokenLogprob::token) == 0;
    }
    EXPECT_EQ(others > 0, temperature > 0.0f) << others;
  }
}

TEST(HeldTokens, ReachTheirReaderBehindTheNextLaunch) {
  const auto engine = load_engine(true);
  const auto answer = submit(*engine, params_of(0), nullptr);

  ASSERT_TRUE(engine->step().ok());
  EXPECT_TRUE(answer->tokens.empty());
  ASSERT_TRUE(engine->core().start_step().ok());
  EXPECT_EQ(answer->tokens.size(), 1u);
  const auto late = submit(*engine, params_of(1), nullptr);  // between the halves
  ASSERT_TRUE(engine->core().finish_step().ok());
  EXPECT_EQ(answer->tokens.size(), 1u);
  run_to_end(*engine);

  for (const auto& a : {answer, late}) {
    EXPECT_EQ(a->tokens.size(), 20u);
    EXPECT_EQ(a->ends, std::vector<FinishReason>{FinishReason::kLength});
  }
}

TEST(HeldTokens, ComeBeforeTheEndOfACancelledRequest) {
  const auto engine = load_engine(true);
  const auto between_steps = submit(*engine, params_of(0), nullptr);
  const auto within_a_step = submit(*engine, params_of(1), nullptr);
  const auto other = submit(*engine, params_of(2), nullptr);
  ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->step().ok());

  EXPECT_TRUE(engine->cancel(between_steps->id));
  EXPECT_EQ(between_steps->tokens.size(), 2u);
  EXPECT_EQ(between_steps->ends, std::vector<FinishReason>{FinishReason::kAborted});
  ASSERT_TRUE(engine->core().start_step().ok());
  EXPECT_TRUE(engine->cancel(within_a_step->id));
  ASSERT_TRUE(engine->core().finish_step().ok());
  run_to_end(*engine);

  EXPECT_EQ(between_steps->tokens.size(), 2u);
  EXPECT_EQ(within_a_step->tokens.size(), 2u);
  EXPECT_EQ(within_a_step->ends, std::vector<FinishReason>{FinishReason::kAborted});
  EXPECT_EQ(other->tokens.size(), 20u);
  EXPECT_EQ(engine->core().stats().owned_pages, 0);
}

}  // namespace
}  // namespace fathom
