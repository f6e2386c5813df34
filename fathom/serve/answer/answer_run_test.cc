#include "fathom/serve/answer/answer_run.h"

#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "fathom/text/json.h"
#include "tests/support/served_engine.h"
#include "tests/support/temp_dir.h"

namespace fathom::serve {
namespace {

struct Written {
  struct Choice {
    std::string reasoning, content;
    int64_t tokens = 0;
    int ends = 0;
    ChoiceEnd end;
  };

  std::vector<Choice> choices = std::vector<Choice>(8);
  int opens = 0, begins = 0, ends = 0;
  AnswerUsage usage;
  AnswerTimings timings;
  std::vector<ApiError> errors;
};

class Recorder final : public ReplyWriter {
 public:
  explicit Recorder(Written& out) : out_(out) {}

  void open() override { ++out_.opens; }

  void begin(const AnswerUsage&, const std::vector<PromptLogprobs>*) override { ++out_.begins; }

  void delta(const ChoiceDelta& d) override {
    Written::Choice& c = out_.choices[static_cast<size_t>(d.choice)];
    c.reasoning += d.parts.reasoning;
    c.content += d.parts.content;
    c.tokens += static_cast<int64_t>(d.tokens.size());
  }

  void finish(const ChoiceEnd& end) override {
    Written::Choice& c = out_.choices[static_cast<size_t>(end.choice)];
    c.end = end;
    ++c.ends;
  }

  void end(const AnswerUsage& usage, const AnswerTimings& timings) override {
    out_.usage = usage;
    out_.timings = timings;
    ++out_.ends;
  }

  void fail(const ApiError& error) override { out_.errors.push_back(error); }

 private:
  Written& out_;
};

class AnswerRunTest : public testing::Test {
 protected:
  AnswerSpec spec(const std::string& text, int64_t max_tokens) {
    AnswerSpec s;
    s.request = served.request(text, max_tokens);
    return s;
  }

  std::shared_ptr<FakeExchange> run(std::vector<AnswerSpec> specs) {
    auto exchange = FakeExchange::post("/v1/completions", "{}");
    run_answer({.service = &served.service,
                .post = served.loop.post(),
                .open = &open,
                .trace = trace.get()},
               exchange, std::move(specs), std::make_unique<Recorder>(out));
    return exchange;
  }

  bool wait() {
    return served.turn_until([&] { return out.ends > 0 || !out.errors.empty(); });
  }

  OpenAnswers open;
  std::unique_ptr<RequestTrace> trace;
  ServedEngine served;
  Written out;
};

TEST_F(AnswerRunTest, OneChoiceOfPlainText) {
  AnswerSpec s = spec("Once upon a time", 12);
  s.request.sampling.top_logprobs = 2;
  run({s});
  ASSERT_TRUE(wait());
  EXPECT_EQ(out.begins, 1);
  EXPECT_EQ(out.ends, 1);
  EXPECT_EQ(out.choices[0].ends, 1);
  EXPECT_FALSE(out.choices[0].content.empty());
  EXPECT_EQ(out.choices[0].tokens, 12);
  EXPECT_EQ(out.usage.completion_tokens, 12);
  EXPECT_EQ(out.choices[0].end.finish, FinishReason::kLength);
  EXPECT_FALSE(out.choices[0].end.context_full);
}

TEST_F(AnswerRunTest, ChoicesShareTheirPrompt) {
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += "once upon a time there was ";
  AnswerSpec s = spec(text, 4);
  s.num_choices = 4;
  s.request.sampling.temperature = 1;
  s.request.sampling.seed = 7;
  const auto length = static_cast<int64_t>(s.request.prompt.size());
  run({s});
  ASSERT_TRUE(wait());
  EXPECT_EQ(out.usage.prompt_tokens, length);
  EXPECT_EQ(out.usage.completion_tokens, 16);
  EXPECT_EQ(out.usage.cached_tokens, 0);
  // The prompt was computed once, and of each other choice what the cache has no whole block for.
  const int64_t computed = served.service.stats().core.prompt_tokens;
  EXPECT_LT(computed, length + 3 * 2 * 64);
  EXPECT_NE(out.choices[0].content, out.choices[1].content);
}

TEST_F(AnswerRunTest, SpecsAreNumberedThrough) {
  AnswerSpec a = spec("Once upon a time", 6);
  AnswerSpec b = spec("The dog", 5);
  a.num_choices = 2;
  run({a, b});
  ASSERT_TRUE(wait());
  EXPECT_EQ(out.choices[0].content, out.choices[1].content);  // greedy
  EXPECT_NE(out.choices[0].content, out.choices[2].content);
  EXPECT_EQ(out.usage.completion_tokens, 17);
  EXPECT_EQ(out.choices[3].ends, 0);
}

TEST_F(AnswerRunTest, AStopStringCutsParsedText) {
  run({spec("Once upon a time", 40)});
  ASSERT_TRUE(wait());
  const std::string whole = out.choices[0].content;
  ASSERT_GT(whole.size(), 20u);
  // Stops in the middle of tokens too: every place of three bytes.
  for (size_t at = 3; at + 3 < whole.size(); at += 5) {
    const std::string stop = whole.substr(at, 3);
    out = {};
    AnswerSpec s = spec("Once upon a time", 40);
    s.request.sampling.stop = {stop};
    s.grammar =
        AnswerGrammar{.tool_calls = AnswerGrammar::ToolCalls::kFencedJson, .knows_thinking = true};
    run({s});
    ASSERT_TRUE(wait());
    EXPECT_EQ(out.choices[0].content, whole.substr(0, whole.find(stop))) << "stop: " << stop;
    EXPECT_EQ(out.choices[0].end.stop_text, stop);
  }
}

TEST_F(AnswerRunTest, WhatIsHeldBackComesAtTheEnd) {
  run({spec("Once upon a time", 20)});
  ASSERT_TRUE(wait());
  const std::string whole = out.choices[0].content;
  out = {};
  AnswerSpec s = spec("Once upon a time", 20);
  s.request.sampling.stop = {whole.substr(whole.size() - 4) + "never"};
  s.grammar = AnswerGrammar{};
  run({s});
  ASSERT_TRUE(wait());
  EXPECT_EQ(out.choices[0].content, whole);
}

TEST_F(AnswerRunTest, ARefusalFails) {
  run({spec("x", 100'000)});
  ASSERT_TRUE(wait());
  ASSERT_EQ(out.errors.size(), 1u);
  EXPECT_EQ(out.errors[0].status, 400);
  EXPECT_EQ(out.errors[0].code, "context_length_exceeded");
  EXPECT_EQ(out.begins + out.ends, 0);
}

TEST_F(AnswerRunTest, ASilentAnswerIsOpenedBeforeItBegins) {
  const auto exchange = run({spec("Once upon a time", 4)});
  ASSERT_TRUE(served.turn_until([&] { return exchange->awaits_silence(); }));
  EXPECT_EQ(out.opens + out.begins, 0);
  exchange->stay_silent();
  EXPECT_EQ(out.opens, 1);
  ASSERT_TRUE(wait());
  EXPECT_EQ(out.opens, 1);
  EXPECT_EQ(out.begins, 1);
}

TEST_F(AnswerRunTest, WhatIsRefusedIsNotOpened) {
  const auto exchange = run({spec("x", 100'000)});
  ASSERT_TRUE(wait());
  EXPECT_FALSE(exchange->awaits_silence());
  EXPECT_EQ(out.opens, 0);
}

TEST_F(AnswerRunTest, WhatEndedIsNotOpened) {
  AnswerSpec s = spec("Once", 1500);
  s.request.sampling.ignore_eos = true;
  const auto exchange = run({s});
  ASSERT_TRUE(served.turn_until([&] { return exchange->awaits_silence(); }));
  EXPECT_EQ(open.abort("req-test"), 1);
  exchange->stay_silent();
  EXPECT_EQ(out.opens, 0);
  ASSERT_TRUE(served.turn_until([&] { return served.service.idle(); }));
}

TEST_F(AnswerRunTest, NothingIsWrittenForWhoIsGone) {
  AnswerSpec s = spec("Once", 1500);
  s.request.sampling.ignore_eos = true;
  s.num_choices = 3;
  const auto exchange = run({s});
  ASSERT_TRUE(served.turn_until([&] { return out.begins == 1; }));
  exchange->leave();
  ASSERT_TRUE(served.turn_until([&] { return served.service.idle(); }));
  served.loop.turn();
  EXPECT_LT(served.service.stats().core.generated_tokens, 1500);  // none of the three was finished
  EXPECT_EQ(out.ends, 0);
  EXPECT_TRUE(out.errors.empty());
}

TEST_F(AnswerRunTest, WhatWasAskedAndAnsweredIsTraced) {
  const TempDir dir;
  const std::string path = dir.path() + "/trace.jsonl";
  Result<std::unique_ptr<RequestTrace>> opened = RequestTrace::open(path);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  trace = std::move(opened).value();
  run({spec("Once upon a time", 4)});
  ASSERT_TRUE(wait());
  const std::string content = out.choices[0].content;
  out = {};
  run({spec("x", 100'000)});
  ASSERT_TRUE(wait());
  trace.reset();
  std::ifstream in(path);
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  Result<Json> json = parse_json(line, {}, "line");
  ASSERT_TRUE(json.ok()) << line;
  EXPECT_EQ(json->find("id")->as_string(), "req-test");
  EXPECT_NE(json->find("specs")->items()[0].find("prompt")->as_string().find("Once upon"),
            std::string::npos);
  const Json& choice = json->find("choices")->items()[0];
  EXPECT_EQ(choice.find("text")->as_string(), content);
  EXPECT_EQ(choice.find("tokens")->items().size(), 4u);
  EXPECT_EQ(choice.find("finish")->as_string(), "length");
  ASSERT_TRUE(std::getline(in, line));
  json = parse_json(line, {}, "line");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->find("error")->as_string(), "context_length_exceeded");

  struct stat info {};

  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AnswerRunTest, AnOperatorEndsARequestByItsId) {
  AnswerSpec s = spec("Once", 1500);
  s.request.sampling.ignore_eos = true;
  run({s});
  ASSERT_TRUE(served.turn_until([&] { return out.begins == 1; }));
  EXPECT_EQ(open.abort("nobody"), 0);
  EXPECT_EQ(open.abort("req-test"), 1);
  EXPECT_EQ(open.size(), 0u);
  ASSERT_EQ(out.errors.size(), 1u);
  EXPECT_EQ(out.errors[0].code, "aborted");
  ASSERT_TRUE(served.turn_until([&] { return served.service.idle(); }));
}

/// Allows no token at all.
struct DeadEnd final : TokenConstraint {
  ConstraintPlace next(std::span<uint32_t> mask) override {
    std::ranges::fill(mask, 0u);
    return ConstraintPlace::kPayload;
  }

  bool accept(int32_t) override { return false; }

  void rollback(int64_t) override {}
};

struct DeadEnds final : CompiledGrammar {
  std::unique_ptr<TokenConstraint> start() const override { return std::make_unique<DeadEnd>(); }
};

TEST_F(AnswerRunTest, AFaultOfAConstraintIsToldAsOneAlsoWhileDraining) {
  AnswerSpec s = spec("Once", 20);
  s.constraint = std::make_shared<DeadEnds>();
  for (const bool drains : {false, true}) {
    out = {};
    run({s});
    ASSERT_TRUE(served.loop.turn());  // it submits; its end is told in a later turn
    if (drains) served.service.drain();
    ASSERT_TRUE(wait());
    ASSERT_EQ(out.errors.size(), 1u);
    EXPECT_EQ(out.errors[0].code, "constraint_fault") << drains;
    EXPECT_EQ(out.errors[0].status, 500) << drains;
  }
}

TEST_F(AnswerRunTest, AnEndThatTheServiceAskedForIsNoFault) {
  AnswerSpec s = spec("Once", 1500);
  s.request.sampling.ignore_eos = true;
  run({s});
  ASSERT_TRUE(served.turn_until([&] { return out.begins == 1; }));
  served.service.end_all(FinishReason::kAborted);
  ASSERT_TRUE(wait());
  ASSERT_EQ(out.errors.size(), 1u);
  EXPECT_EQ(out.errors[0].code, "draining");
}

TEST_F(AnswerRunTest, AnEndedServiceFailsWhatRuns) {
  AnswerSpec s = spec("Once", 1500);
  s.request.sampling.ignore_eos = true;
  run({s});
  ASSERT_TRUE(served.turn_until([&] { return out.begins == 1; }));
  served.service.drain();
  served.service.end_all(FinishReason::kAborted);
  ASSERT_TRUE(wait());
  ASSERT_EQ(out.errors.size(), 1u);
  EXPECT_EQ(out.errors[0].code, "draining");
  EXPECT_EQ(out.errors[0].status, 503);
}

}  // namespace
}  // namespace fathom::serve
