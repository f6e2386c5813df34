#include "fathom/runtime/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>
#include <new>
#include <set>

#include "fathom/kernels/core/catalog.h"
#include "tests/support/allocation_count.h"
#include "tests/support/fake_model.h"

namespace fathom {
namespace {

constexpr int32_t kEnd = 2;

struct Answer {
  RequestId id = 0;
  std::vector<int32_t> tokens;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  int64_t cached = 0;
  int events_after_end = 0;
};

struct Limits {
  int64_t num_pages = 200;
  int64_t max_num_seqs = 8;
  int64_t max_num_batched_tokens = 64;
  int64_t max_prefill_chunk = 0;
  bool prefix_cache = true;
  bool share_decoded_pages = false;
  int64_t vocab = 40;
  int64_t num_ids = 40;
  uint64_t seed = 0;
  const Tokenizer* tokenizer = nullptr;
};

class Bench {
 public:
  explicit Bench(const Limits& limits = {}) : model(limits.vocab) {
    install_cpu_kernels(best_isa());
    CoreSettings settings;
    Result<MemoryPlan> plan =
        plan_memory(model, {.max_num_seqs = limits.max_num_seqs,
                            .max_num_batched_tokens = limits.max_num_batched_tokens,
                            .num_ids = limits.num_ids,
                            .num_threads = pool_.size()});
    FATHOM_CHECK(plan.ok(), plan.ok() ? "" : plan.status().message());
    settings.plan = *plan;
    settings.plan.num_pages = limits.num_pages;
    settings.scheduler = {.max_num_seqs = limits.max_num_seqs,
                          .max_num_batched_tokens = limits.max_num_batched_tokens,
                          .max_prefill_chunk = limits.max_prefill_chunk,
                          .max_model_len = settings.plan.max_model_len,
                          .share_decoded_pages = limits.share_decoded_pages};
    settings.prefix_cache = limits.prefix_cache;
    settings.model_fingerprint = "fake";
    settings.seed = limits.seed;
    settings.end_ids = {kEnd};
    auto created = EngineCore::create(settings, model, pool_, limits.tokenizer, clock);
    FATHOM_CHECK(created.ok(), created.ok() ? "" : created.status().message());
    core = std::move(created).value();
  }

  // Submits a request whose answer is collected.
  std::shared_ptr<Answer> submit(std::vector<int32_t> prompt,
                                 SamplingParams params,
                                 std::string salt = "") {
    auto answer = std::make_shared<Answer>();
    Request request;
    request.prompt = std::move(prompt);
    request.sampling = std::move(params);
    request.cache_salt = std::move(salt);
    request.on_token = [answer](const TokenEvent& e) {
      if (answer->finish != FinishReason::kNone) ++answer->events_after_end;
      if (e.token >= 0) {
        EXPECT_EQ(e.index, static_cast<int64_t>(answer->tokens.size()));
        answer->tokens.push_back(e.token);
      }
      answer->text += e.text;
      answer->finish = e.finish;
      answer->cached = e.cached_tokens;
    };
    Result<RequestId> id = core->submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    if (id.ok()) answer->id = *id;
    return answer;
  }

  void run() {
    for (int i = 0; !core->idle(); ++i) {
      ASSERT_LT(i, 10'000);
      const Status s = core->step();
      ASSERT_TRUE(s.ok()) << s.message();
    }
  }

  Answer alone(std::vector<int32_t> prompt, const SamplingParams& params) {
    auto answer = submit(std::move(prompt), params);
    run();
    return *answer;
  }

  FakeModel model;
  ManualClock clock{1};
  std::unique_ptr<EngineCore> core;

 private:
  ThreadPool pool_{2, PinThreads::kNo};
};

SamplingParams greedy(int64_t max_tokens) {
  SamplingParams p;
  p.temperature = 0.0f;
  p.max_tokens = max_tokens;
  return p;
}

SamplingParams drawn(int64_t max_tokens, uint64_t seed) {
  SamplingParams p;
  p.max_tokens = max_tokens;
  p.seed = seed;
  p.top_p = 0.9f;
  return p;
}

std::vector<int32_t> prompt_of(int64_t length, int32_t first) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>((static_cast<size_t>(first) + i * 7) % 12 + 14);
  }
  return prompt;
}

// What greedy decoding of the fake model must give.
std::vector<int32_t> expected_greedy(std::vector<int32_t> tokens,
                                     int64_t count,
                                     int64_t vocab = 40) {
  const size_t begin = tokens.size();
  while (static_cast<int64_t>(tokens.size() - begin) < count) {
    const auto logits = FakeModel::logits_after(tokens, vocab);
    if (std::isnan(logits[0])) break;
    tokens.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
    if (tokens.back() == kEnd) break;
  }
  return {tokens.begin() + static_cast<int64_t>(begin), tokens.end()};
}

TEST(Engine, GreedyTokensAreThoseOfTheModel) {
  for (int64_t length : {1, 2, 3, 4, 5, 63, 64, 65, 130}) {
    Bench bench;
    const auto prompt = prompt_of(length, 1);

    const Answer a = bench.alone(prompt, greedy(20));

    EXPECT_EQ(a.tokens, expected_greedy(prompt, 20)) << length;
  }
}

TEST(Engine, EndsWithTheReason) {
  Bench bench;
  SamplingParams p = greedy(5);
  p.ignore_eos = true;
  EXPECT_EQ(bench.alone(prompt_of(3, 1), p).finish, FinishReason::kLength);
  p.stop_token_ids = {expected_greedy(prompt_of(3, 1), 5)[2]};
  const Answer a = bench.alone(prompt_of(3, 1), p);
  EXPECT_EQ(a.finish, FinishReason::kStop);
  EXPECT_EQ(a.tokens.back(), p.stop_token_ids[0]);
}

// R6: requests of every kind, each alone and all together, in a pool so small that they preempt.
TEST(Engine, NeighboursNeverChangeTokens) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    Rng rng(seed);
    Limits limits;
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
    Bench together(limits);
    std::vector<std::shared_ptr<Answer>> answers;
    for (size_t i = 0; i < prompts.size(); ++i) {
      answers.push_back(together.submit(prompts[i], params[i]));
      for (uint32_t n = rng.next_below(4); n > 0; --n)
        ASSERT_TRUE(together.core->step().ok());
    }
    together.run();

    Bench alone({.prefix_cache = false});
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Answer expected = alone.alone(prompts[i], params[i]);
      EXPECT_EQ(answers[i]->tokens, expected.tokens) << "request " << i;
      EXPECT_EQ(answers[i]->finish, expected.finish);
      EXPECT_EQ(answers[i]->events_after_end, 0);
    }
    EXPECT_EQ(together.core->stats().owned_pages, 0);
  }
}

TEST(Engine, PreemptedRequestsGoOnAsIfNothingHappened) {
  Bench bench({.num_pages = 20, .prefix_cache = false});
  std::vector<std::shared_ptr<Answer>> answers;
  SamplingParams p = greedy(50);
  p.ignore_eos = true;
  for (int32_t i = 0; i < 6; ++i)
    answers.push_back(bench.submit(prompt_of(6, i), p));

  bench.run();

  EXPECT_GT(bench.core->stats().scheduler.num_preemptions, 0);
  Bench alone;
  for (int32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(answers[static_cast<size_t>(i)]->tokens, alone.alone(prompt_of(6, i), p).tokens);
  }
}

TEST(Engine, PrefixHitsGiveEqualTokens) {
  for (int64_t length : {4, 7, 8, 9, 64}) {
    Bench bench;
    const auto prompt = prompt_of(length, 2);

    const Answer cold = bench.alone(prompt, greedy(10));
    const Answer hit = bench.alone(prompt, greedy(10));

    EXPECT_EQ(cold.cached, 0);
    // All complete pages but the one that holds the last token.
    EXPECT_EQ(hit.cached, (length - 1) / FakeModel::kPageSize * FakeModel::kPageSize);
    EXPECT_EQ(hit.tokens, cold.tokens);
  }
}

TEST(Engine, SaltsSeparatePrefixes) {
  Bench bench;
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
    Bench bench({.share_decoded_pages = share});
    SamplingParams p = greedy(20);
    p.ignore_eos = true;
    std::vector<int32_t> turn = prompt_of(8, 3);
    const Answer first = bench.alone(turn, p);
    turn.insert(turn.end(), first.tokens.begin(), first.tokens.end());
    if (std::ranges::find(turn, FakeModel::kNanToken) != turn.end()) continue;

    const Answer second = bench.alone(turn, greedy(1));

    EXPECT_EQ(second.cached, share ? 24 : 8);
  }
}

TEST(Engine, ChunksOfAPromptGiveTheSameTokens) {
  const auto prompt = prompt_of(100, 4);
  std::set<std::vector<int32_t>> outcomes;
  for (int64_t chunk : {0, 1, 3, 4, 5, 64}) {
    Bench bench({.max_prefill_chunk = chunk});
    outcomes.insert(bench.alone(prompt, drawn(10, 3)).tokens);
  }

  EXPECT_EQ(outcomes.size(), 1u);
}

TEST(Engine, SeedsAreReproducible) {
  Bench first;
  Bench second;
  (void)second.alone(prompt_of(3, 1), drawn(3, 1));  // other ids, other steps
  std::set<std::vector<int32_t>> outcomes;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Answer a = first.alone(prompt_of(5, 1), drawn(12, seed));
    EXPECT_EQ(second.alone(prompt_of(5, 1), drawn(12, seed)).tokens, a.tokens);
    outcomes.insert(a.tokens);
  }
  EXPECT_GT(outcomes.size(), 6u);
}

TEST(Engine, RequestsWithoutSeedDiffer) {
  Bench bench;
  SamplingParams p = drawn(12, 0);
  p.seed.reset();
  std::set<std::vector<int32_t>> outcomes;
  for (int i = 0; i < 5; ++i)
    outcomes.insert(bench.alone(prompt_of(5, 1), p).tokens);

  EXPECT_GT(outcomes.size(), 3u);
}

TEST(Engine, CancellationFreesPagesWithinTwoSteps) {
  Bench bench({.prefix_cache = false});
  SamplingParams p = greedy(100);
  p.ignore_eos = true;
  auto stays = bench.submit(prompt_of(10, 1), p);
  auto goes = bench.submit(prompt_of(50, 2), p);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(bench.core->step().ok());
  const size_t seen = goes->tokens.size();
  EXPECT_GT(seen, 0u);

  EXPECT_TRUE(bench.core->cancel(goes->id));
  EXPECT_FALSE(bench.core->cancel(goes->id));
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(bench.core->step().ok());

  EXPECT_EQ(goes->finish, FinishReason::kAborted);
  EXPECT_EQ(goes->tokens.size(), seen);
  const auto held = static_cast<int64_t>(10 + stays->tokens.size() + 1);
  EXPECT_LE(bench.core->stats().owned_pages, (held + 3) / 4 + 1);
  EXPECT_TRUE(bench.core->cancel(stays->id));
  EXPECT_EQ(bench.core->stats().owned_pages, 0);
  EXPECT_TRUE(bench.core->idle());
}

TEST(Engine, CancelsOfUnknownRequestsAreDropped) {
  Bench bench;
  const Answer done = bench.alone(prompt_of(3, 1), greedy(2));

  EXPECT_FALSE(bench.core->cancel(done.id));
  EXPECT_FALSE(bench.core->cancel(987));
}

TEST(Engine, CallbacksMayCancelAndSubmit) {
  Bench bench;
  SamplingParams p = greedy(100);
  p.ignore_eos = true;
  auto victim = bench.submit(prompt_of(9, 1), p);
  auto late = std::make_shared<Answer>();
  std::vector<FinishReason> own;
  Request request;
  request.prompt = prompt_of(5, 2);
  request.sampling = p;
  request.on_token = [&](const TokenEvent& e) {
    own.push_back(e.finish);
    if (e.index == 3) {
      EXPECT_TRUE(bench.core->cancel(victim->id));
      late = bench.submit(prompt_of(4, 5), greedy(3));
      EXPECT_TRUE(bench.core->cancel(e.id));
      EXPECT_FALSE(bench.core->cancel(e.id));
    }
  };
  ASSERT_TRUE(bench.core->submit(std::move(request)).ok());

  bench.run();

  EXPECT_EQ(victim->finish, FinishReason::kAborted);
  EXPECT_EQ(victim->events_after_end, 0);
  EXPECT_EQ(own.size(), 5u);
  EXPECT_EQ(own.back(), FinishReason::kAborted);
  EXPECT_EQ(late->tokens, expected_greedy(prompt_of(4, 5), 3));
  EXPECT_EQ(bench.core->stats().owned_pages, 0);
}

// R13: NaN in one request's context ends that one, and its pages are shared with nobody.
TEST(Engine, NonFiniteLogitsEndOnlyTheirRequest) {
  Bench bench;
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
  Bench bench({.vocab = 60, .num_ids = 40});
  SamplingParams p = drawn(100, 1);
  p.temperature = 2.0f;
  p.top_p = 1.0f;
  p.ignore_eos = true;
  for (int32_t i = 0; i < 10; ++i) {
    for (int32_t token : bench.alone(prompt_of(3, i), p).tokens)
      EXPECT_LT(token, 40);
  }
}

TEST(Engine, DeadlinesEndRequests) {
  Bench bench({.max_num_seqs = 1});
  SamplingParams p = greedy(200);
  p.ignore_eos = true;
  auto collect = [](std::vector<FinishReason>& to) {
    return [&to](const TokenEvent& e) {
      if (e.finish != FinishReason::kNone) to.push_back(e.finish);
    };
  };
  std::vector<FinishReason> running;
  std::vector<FinishReason> waiting;
  Request a;
  a.prompt = prompt_of(3, 1);
  a.sampling = p;
  a.request_timeout_ns = 1000;
  a.on_token = collect(running);
  Request b = a;
  b.request_timeout_ns = 0;
  b.queue_timeout_ns = 500;
  b.on_token = collect(waiting);
  ASSERT_TRUE(bench.core->submit(std::move(a)).ok());
  ASSERT_TRUE(bench.core->submit(std::move(b)).ok());

  ASSERT_TRUE(bench.core->step().ok());
  bench.clock.advance_ns(499);
  ASSERT_TRUE(bench.core->step().ok());
  EXPECT_TRUE(waiting.empty());
  bench.clock.advance_ns(1);
  ASSERT_TRUE(bench.core->step().ok());
  EXPECT_EQ(waiting, std::vector<FinishReason>{FinishReason::kQueueTimeout});
  EXPECT_TRUE(running.empty());
  bench.clock.advance_ns(500);
  ASSERT_TRUE(bench.core->step().ok());

  EXPECT_EQ(running, std::vector<FinishReason>{FinishReason::kRequestTimeout});
  EXPECT_TRUE(bench.core->idle());
}

TEST(Engine, FaultEndsEveryRequestAndRefusesMore) {
  Bench bench;
  bench.model.fail_at = 3;
  SamplingParams p = greedy(50);
  p.ignore_eos = true;
  auto a = bench.submit(prompt_of(3, 1), p);
  auto b = bench.submit(prompt_of(9, 2), p);
  ASSERT_TRUE(bench.core->step().ok());
  ASSERT_TRUE(bench.core->step().ok());

  const Status fault = bench.core->step();

  EXPECT_FALSE(fault.ok());
  EXPECT_NE(fault.message().find("injected"), std::string::npos);
  EXPECT_EQ(a->finish, FinishReason::kEngineFault);
  EXPECT_EQ(b->finish, FinishReason::kEngineFault);
  EXPECT_EQ(bench.core->stats().owned_pages, 0);
  EXPECT_EQ(bench.core->step().code(), StatusCode::kDeviceLost);
  Request more;
  more.prompt = {1};
  EXPECT_EQ(bench.core->submit(std::move(more)).status().code(), StatusCode::kDeviceLost);
}

StatusCode refusal(Bench& bench, std::vector<int32_t> prompt, SamplingParams p, std::string word) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling = std::move(p);
  request.on_token = [](const TokenEvent&) { ADD_FAILURE() << "a refused request has no events"; };
  const Result<RequestId> id = bench.core->submit(std::move(request));
  EXPECT_FALSE(id.ok());
  if (id.ok()) return StatusCode::kOk;
  EXPECT_NE(id.status().message().find(word), std::string::npos) << id.status().message();
  return id.status().code();
}

TEST(Engine, RefusesRequestsAtEveryBorder) {
  Bench bench({.num_pages = 32});
  const StatusCode invalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(refusal(bench, {}, greedy(1), "empty"), invalid);
  EXPECT_EQ(refusal(bench, {1, -1}, greedy(1), "prompt[1] is -1"), invalid);
  EXPECT_EQ(refusal(bench, {40}, greedy(1), "expected 0 to 39"), invalid);
  EXPECT_EQ(refusal(bench, {1}, greedy(0), "max_tokens is 0"), invalid);
  EXPECT_EQ(refusal(bench, {1}, greedy(-1), "max_tokens is -1"), invalid);
  EXPECT_EQ(refusal(bench, {1}, greedy(256), "context_length_exceeded"), invalid);
  EXPECT_EQ(refusal(bench, {1}, greedy(INT64_MAX), "context_length_exceeded"), invalid);
  EXPECT_EQ(refusal(bench, prompt_of(256, 1), greedy(1), "context_length_exceeded"), invalid);
  EXPECT_EQ(refusal(bench, {1}, greedy(128), "too_large_for_pool"), invalid);
  SamplingParams stop = greedy(1);
  stop.stop = {"x"};
  EXPECT_EQ(refusal(bench, {1}, stop, "tokenizer"), invalid);
  SamplingParams nan = greedy(1);
  nan.temperature = std::nanf("");
  EXPECT_EQ(refusal(bench, {1}, nan, "temperature"), invalid);
  EXPECT_TRUE(bench.core->idle());
  // The largest that fits: 32 pages of 4 tokens.
  EXPECT_EQ(bench.alone({39}, greedy(127)).events_after_end, 0);
}

TEST(Engine, AbsentMaxTokensMeansWhatFits) {
  Bench bench({.num_pages = 32});
  SamplingParams p;
  p.temperature = 0.0f;
  p.ignore_eos = true;

  const Answer a = bench.alone(prompt_of(28, 1), p);

  if (a.finish == FinishReason::kLength) {
    EXPECT_EQ(a.tokens.size(), 100u);
  } else {
    EXPECT_EQ(a.finish, FinishReason::kNumericalError);
  }
  EXPECT_EQ(bench.core->default_max_tokens(28), 100);
  EXPECT_EQ(bench.core->default_max_tokens(500), 1);
}

TEST(Engine, StopStringsEndTheText) {
  auto tokenizer = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/micro-v3");
  ASSERT_TRUE(tokenizer.ok());
  Bench bench({.vocab = 4200, .num_ids = tokenizer->vocab_size(), .tokenizer = &*tokenizer});
  SamplingParams p = greedy(40);
  p.ignore_eos = true;
  const Answer whole = bench.alone(prompt_of(5, 1), p);
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

  const Answer cut = bench.alone(prompt_of(5, 1), p);

  EXPECT_EQ(cut.finish, FinishReason::kStop);
  EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(p.stop[0])));
}

TEST(Engine, MinTokensHoldTheEndBack) {
  Bench bench;
  // A prompt whose greedy answer ends early.
  for (int32_t first = 0; first < 200; ++first) {
    const std::vector<int32_t> prompt = {first % 12 + 14, first / 12 + 14};
    const auto expected = expected_greedy(prompt, 10);
    if (expected.back() != kEnd || expected.size() > 5) continue;
    SamplingParams p = greedy(10);
    p.min_tokens = 8;

    const Answer a = bench.alone(prompt, p);

    EXPECT_GE(a.tokens.size(), 8u);
    for (size_t i = 0; i < 8; ++i)
      EXPECT_NE(a.tokens[i], kEnd);
    return;
  }
  FAIL() << "no prompt ends early";
}

TEST(Engine, LogprobsComeWithTheTokens) {
  Bench bench;
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

#ifndef FATHOM_SANITIZED
// Architecture, section 10: a thousand steps of decode without an allocation of the host.
TEST(Engine, SteadyDecodeAllocatesNothing) {
  Bench bench({.num_pages = 2000, .share_decoded_pages = true});
  SamplingParams p = greedy(240);
  p.ignore_eos = true;
  SamplingParams q = drawn(240, 1);
  q.ignore_eos = true;
  q.repetition_penalty = 1.1f;
  q.top_logprobs = 3;
  int64_t steps = 0;
  int64_t allocations = 0;
  for (int32_t round = 0; round < 6; ++round) {
    for (int32_t i = 0; i < 6; ++i) {
      Request request;
      request.prompt = prompt_of(5, i + 6 * round);
      request.sampling = i % 2 == 0 ? p : q;
      ASSERT_TRUE(bench.core->submit(std::move(request)).ok());
    }
    for (int i = 0; i < 30; ++i)
      ASSERT_TRUE(bench.core->step().ok());
    const int64_t before = allocation_count();
    while (bench.core->stats().scheduler.num_running == 6) {
      ASSERT_TRUE(bench.core->step().ok());
      ++steps;
    }
    allocations += allocation_count() - before;
    bench.run();
  }
  EXPECT_GT(steps, 200);
  // Nothing but the entries of newly published pages in the index of the prefix cache (a page for
  // each 4 tokens of 6 requests), and the ends of requests.
  EXPECT_LE(allocations, steps * 2);
  RecordProperty("allocations", std::to_string(allocations));
}

TEST(Engine, DecodeWithoutPublishingAllocatesNothingAtAll) {
  Bench bench({.num_pages = 2000});
  SamplingParams p = drawn(200, 1);
  p.ignore_eos = true;
  p.frequency_penalty = 0.1f;
  p.top_logprobs = 3;
  Request request;
  request.prompt = prompt_of(5, 1);
  request.sampling = p;
  request.sampling.logit_bias = {{FakeModel::kNanToken, -100.0f}};
  ASSERT_TRUE(bench.core->submit(std::move(request)).ok());
  for (int i = 0; i < 60; ++i)
    ASSERT_TRUE(bench.core->step().ok());

  const int64_t before = allocation_count();
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(bench.core->step().ok());

  EXPECT_EQ(allocation_count() - before, 0);
  EXPECT_EQ(bench.core->stats().scheduler.num_running, 1);
}
#endif

}  // namespace
}  // namespace fathom
