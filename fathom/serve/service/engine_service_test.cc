#include "fathom/serve/service/engine_service.h"

#include <gtest/gtest.h>

#include "tests/support/served_engine.h"

namespace fathom::serve {
namespace {

struct Answer {
  std::vector<int32_t> tokens;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  int64_t cached = 0;
  int ends = 0;
  RequestTimes times;
  std::shared_ptr<const Status> refusal;

  ServiceSink sink() {
    return [this](const ServiceEvent& e) {
      if (e.token >= 0) tokens.push_back(e.token);
      text += e.text;
      cached = e.cached_tokens;
      times = e.times;
      refusal = e.refusal;
      if (e.finish == FinishReason::kNone) return;
      finish = e.finish;
      ++ends;
    };
  }
};

struct Counts : ServiceObserver {
  void on_step(const StepRecord& s) override {
    ++steps;
    prompt_tokens += s.prompt_tokens;
    generated_tokens += s.generated_tokens;
  }

  void on_token(double) override { ++later_tokens; }

  void on_first_token(double) override { ++first_tokens; }

  void on_end(const RequestRecord& r) override { records.push_back(r); }

  int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, later_tokens = 0, first_tokens = 0;
  std::vector<RequestRecord> records;
};

TEST(EngineService, AnswersAsTheEngineAloneDoes) {
  Result<std::unique_ptr<Engine>> alone = Engine::load(small_engine_options());
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  Counts counts;
  ServedEngine served(small_engine_options(), &counts);
  const Request request = served.request("Once upon a time", 24);
  const Result<Completion> expected = (*alone)->generate(request.prompt, request.sampling);
  ASSERT_TRUE(expected.ok());

  std::vector<Answer> answers(6);
  for (Answer& a : answers)
    ASSERT_TRUE(served.service.submit(request, a.sink()).ok());
  ASSERT_TRUE(served.turn_until(
      [&] { return std::ranges::all_of(answers, [](const Answer& a) { return a.ends > 0; }); }));
  for (const Answer& a : answers) {
    EXPECT_EQ(a.tokens, expected->tokens);
    EXPECT_EQ(a.text, expected->text);
    EXPECT_EQ(a.ends, 1);
    EXPECT_GT(a.times.submitted_ns, 0);
    EXPECT_GE(a.times.first_token_ns, a.times.submitted_ns);
    EXPECT_GE(a.times.last_token_ns, a.times.first_token_ns);
  }
  EXPECT_TRUE(served.service.idle());
  EXPECT_EQ(counts.records.size(), 6u);
  EXPECT_EQ(counts.first_tokens, 6);
  EXPECT_EQ(counts.generated_tokens, static_cast<int64_t>(6 * expected->tokens.size()));
  EXPECT_EQ(counts.later_tokens, counts.generated_tokens - 6);
  EXPECT_GT(counts.steps, 23);
  const ServiceStats stats = served.service.stats();
  EXPECT_EQ(stats.core.private_pages, 0);
  EXPECT_GT(stats.last_step_ns, 0);
  EXPECT_EQ(stats.busy_since_ns, 0);
}

TEST(EngineService, CancelGivesPagesBack) {
  ServedEngine served;
  Answer a;
  Request request = served.request("Once upon a time", 1500);
  request.sampling.ignore_eos = true;
  const Result<Ticket> ticket = served.service.submit(std::move(request), a.sink());
  ASSERT_TRUE(ticket.ok());
  ASSERT_TRUE(served.turn_until([&] { return a.tokens.size() > 3; }));
  served.service.cancel(*ticket);
  served.service.cancel(*ticket);  // twice is once
  served.service.cancel(12345);    // nobody
  ASSERT_TRUE(served.turn_until([&] { return a.ends > 0; }));
  EXPECT_EQ(a.finish, FinishReason::kAborted);
  EXPECT_EQ(a.ends, 1);
  EXPECT_TRUE(served.service.idle());
  EXPECT_TRUE(served.service.with_engine([](Engine& e) { EXPECT_EQ(e.stats().private_pages, 0); }));
}

TEST(EngineService, RefusesBeforeTheEngineSeesIt) {
  ServedEngine served;
  Answer a;
  Request request = served.request("x", 5000);
  Result<Ticket> ticket = served.service.submit(std::move(request), a.sink());
  ASSERT_FALSE(ticket.ok());
  EXPECT_NE(ticket.status().message().find("context_length_exceeded"), std::string::npos)
      << ticket.status().message();
  request = served.request("x", 5);
  request.prompt.push_back(1'000'000);
  ticket = served.service.submit(std::move(request), a.sink());
  ASSERT_FALSE(ticket.ok());
  EXPECT_EQ(ticket.status().code(), StatusCode::kInvalidArgument);
  served.service.drain();
  ticket = served.service.submit(served.request("x", 5), a.sink());
  ASSERT_FALSE(ticket.ok());
  EXPECT_NE(ticket.status().message().find("draining"), std::string::npos);
  EXPECT_EQ(a.ends, 0);
}

struct EndCount final : ServiceObserver {
  void on_step(const StepRecord&) override {}

  void on_token(double) override {}

  void on_first_token(double) override {}

  void on_end(const RequestRecord&) override { ++count; }

  std::atomic<int64_t> count = 0;
};

TEST(EngineService, LimitsWhoWaits) {
  EngineOptions options = small_engine_options();
  options.max_queue = 2;
  options.max_num_seqs = 1;
  EndCount ends;
  ServedEngine served(options, &ends, 2);
  std::vector<Answer> answers(8);
  // The engine is held up, so that all wait.
  std::atomic<bool> held{false};
  std::atomic<bool> go{false};
  std::thread holder([&] {
    served.service.with_engine([&](Engine&) {
      held = true;
      while (!go)
        std::this_thread::yield();
    });
  });
  while (!held)
    std::this_thread::yield();
  std::vector<Status> refusals;
  for (int i = 0; i < 3; ++i) {
    Result<Ticket> t = served.service.submit(served.request("x", 2), answers[i].sink(), "key");
    if (!t.ok()) refusals.push_back(std::move(t).status());
  }
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_NE(refusals[0].message().find("rate_limit_exceeded"), std::string::npos);
  Result<Ticket> other = served.service.submit(served.request("x", 2), answers[3].sink());
  EXPECT_TRUE(other.ok());
  Result<Ticket> full = served.service.submit(served.request("x", 2), answers[4].sink());
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.status().code(), StatusCode::kOverloaded);
  EXPECT_NE(full.status().message().find("queue_full"), std::string::npos);
  go = true;
  holder.join();
  // What the engine's own queue has no place for ends with a refusal, and the rest is answered.
  ASSERT_TRUE(
      served.turn_until([&] { return answers[0].ends + answers[1].ends + answers[3].ends == 3; }));
  EXPECT_TRUE(served.service.submit(served.request("x", 2), answers[5].sink(), "key").ok());
  ASSERT_TRUE(served.turn_until([&] { return answers[5].ends == 1; }));
  EXPECT_EQ(answers[5].tokens.size(), 2u);
  const auto refused =
      std::ranges::count_if(answers, [](const Answer& a) { return a.refusal != nullptr; });
  EXPECT_EQ(ends.count, 4 - refused) << "a refusal is no end of an answer";
}

TEST(EngineService, EndsAllWithAReason) {
  ServedEngine served;
  std::vector<Answer> answers(6);
  for (Answer& a : answers) {
    Request request = served.request("Once", 1000);
    request.sampling.ignore_eos = true;
    ASSERT_TRUE(served.service.submit(std::move(request), a.sink()).ok());
  }
  served.service.end_all(FinishReason::kAborted);
  ASSERT_TRUE(served.turn_until(
      [&] { return std::ranges::all_of(answers, [](const Answer& a) { return a.ends == 1; }); }));
  EXPECT_TRUE(served.service.idle());
}

TEST(EngineService, AFailedLoadIsReportedAndNothingIsTaken) {
  FakeLoop loop;
  EngineOptions options = small_engine_options();
  options.model = "/nowhere";
  EngineService service([options] { return Engine::load(options); }, {.post = loop.post()});
  const Status s = service.wait_until_loaded();
  EXPECT_EQ(s.code(), StatusCode::kNotFound) << s.message();
  EXPECT_FALSE(service.loaded());
  EXPECT_EQ(service.submit({}, {}).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(service.with_engine([](Engine&) {}));
}

}  // namespace
}  // namespace fathom::serve
