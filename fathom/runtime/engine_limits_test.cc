// Ends and refusals: cancellation, deadlines, faults, borders of requests, allocations.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <memory>

#include "fathom/base/log.h"
#include "fathom/runtime/engine.h"
#include "tests/support/allocation_count.h"
#include "tests/support/fake_engine.h"

namespace fathom {
namespace {

TEST(Engine, CancellationFreesPagesWithinTwoSteps) {
  EngineBench bench({.prefix_cache = false});
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

// A step takes 1 ms and 0.1 ms a token here.
TEST(Engine, StepsBesideDecodesTakeWhatTheyShould) {
  const auto longest_gap = [](int64_t target_ns) {
    EngineBench bench({.max_num_batched_tokens = 128, .step_target_ns = target_ns});
    bench.model.on_forward = [&](int64_t tokens) {
      bench.clock.advance_ns(1'000'000 + 100'000 * tokens);
    };
    SamplingParams p = greedy(60);
    p.ignore_eos = true;
    int64_t last = 0;
    int64_t longest = 0;
    Request stream;
    stream.prompt = prompt_of(20, 1);
    stream.sampling = p;
    stream.on_token = [&](const TokenEvent&) {
      if (last > 0) longest = std::max(longest, bench.clock.now_ns() - last);
      last = bench.clock.now_ns();
    };
    EXPECT_TRUE(bench.core->submit(std::move(stream)).ok());
    for (int i = 0; i < 4; ++i)
      EXPECT_TRUE(bench.core->step().ok());
    auto late = bench.submit(prompt_of(200, 2), greedy(3));
    bench.run();
    EXPECT_EQ(late->tokens, expected_greedy(prompt_of(200, 2), 3));
    return longest;
  };

  EXPECT_GT(longest_gap(0), 13'000'000);
  EXPECT_LE(longest_gap(6'000'000), 6'100'000);
  EXPECT_LE(longest_gap(1), 1'100'000 + Scheduler::kLeastPrefill * 100'000);
}

TEST(Engine, CancelsOfUnknownRequestsAreDropped) {
  EngineBench bench;
  const CollectedAnswer done = bench.alone(prompt_of(3, 1), greedy(2));

  EXPECT_FALSE(bench.core->cancel(done.id));
  EXPECT_FALSE(bench.core->cancel(987));
}

TEST(Engine, CallbacksMayCancelAndSubmit) {
  EngineBench bench;
  SamplingParams p = greedy(100);
  p.ignore_eos = true;
  auto victim = bench.submit(prompt_of(9, 1), p);
  auto late = std::make_shared<CollectedAnswer>();
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

TEST(Engine, DeadlinesEndRequests) {
  EngineBench bench({.max_num_seqs = 1});
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
  EngineBench bench;
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

// Whatever a kernel call is refused with: its arguments come from the engine, not from the user.
TEST(Engine, FaultOfAStepIsNoErrorOfTheCaller) {
  for (const StatusCode code :
       {StatusCode::kOutOfMemory, StatusCode::kInvalidArgument, StatusCode::kUnsupported,
        StatusCode::kNotFound, StatusCode::kCorrupt, StatusCode::kInternal}) {
    EngineBench bench;
    bench.model.fail_at = 1;
    bench.model.fail_with = code;
    (void)bench.submit(prompt_of(3, 1), greedy(5));

    const Status fault = bench.core->step();

    EXPECT_EQ(fault.code(), StatusCode::kInternal) << status_code_name(code);
    EXPECT_NE(fault.message().find("injected"), std::string::npos);
  }
}

std::vector<std::string>& log_lines() {
  static std::vector<std::string> lines;
  return lines;
}

TEST(Engine, PinThatAStepCannotObeyIsReportedAndNoFault) {
  EngineBench bench({.pins = {{"some_op", "some_variant"}}});
  bench.model.fail_at = 1;
  bench.model.fail_with = StatusCode::kUnsupported;
  (void)bench.submit(prompt_of(3, 1), greedy(5));
  log_lines().clear();
  set_log_sink([](LogLevel, std::string_view line) { log_lines().emplace_back(line); });

  const Status refused = bench.core->step();

  set_log_sink(nullptr);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_TRUE(log_lines().empty()) << log_lines().front();
}

TEST(Engine, FaultsWithAMeaningOfTheirOwnKeepIt) {
  for (const StatusCode code :
       {StatusCode::kNumerical, StatusCode::kDeviceLost, StatusCode::kCancelled, StatusCode::kIo}) {
    EngineBench bench;
    bench.model.fail_at = 1;
    bench.model.fail_with = code;
    (void)bench.submit(prompt_of(3, 1), greedy(5));

    EXPECT_EQ(bench.core->step().code(), code);
  }
}

StatusCode refusal(EngineBench& bench,
                   std::vector<int32_t> prompt,
                   SamplingParams p,
                   std::string word) {
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
  EngineBench bench({.num_pages = 32});
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
  EngineBench bench({.num_pages = 32});
  SamplingParams p;
  p.temperature = 0.0f;
  p.ignore_eos = true;

  const CollectedAnswer a = bench.alone(prompt_of(28, 1), p);

  if (a.finish == FinishReason::kLength) {
    EXPECT_EQ(a.tokens.size(), 100u);
  } else {
    EXPECT_EQ(a.finish, FinishReason::kNumericalError);
  }
  EXPECT_EQ(bench.core->default_max_tokens(28), 100);
  EXPECT_EQ(bench.core->default_max_tokens(500), 1);
}

#ifndef FATHOM_SANITIZED
// Architecture, section 10: a thousand steps of decode without an allocation of the host.
TEST(Engine, SteadyDecodeAllocatesNothing) {
  EngineBench bench({.num_pages = 2000, .share_decoded_pages = true});
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
  EngineBench bench({.num_pages = 2000});
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
