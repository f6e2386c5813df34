// `fathom chat --url` with a server whose answers are known.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/mock_text_server.h"
#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

ProgramResult chat(const MockTextServer& server,
                   const std::string& input,
                   const Words& flags = {}) {
  Words args{"chat", "--url", server.url()};
  args.insert(args.end(), flags.begin(), flags.end());
  return run_fathom(args, input);
}

std::string content(const Json& body, size_t message) {
  return body.find("messages")->items()[message].find("content")->as_string();
}

TEST(RemoteChat, AnswersStreamAndBecomePartOfTheConversation) {
  MockTextServer server;

  const ProgramResult r = chat(server, "hello\nand now\n", {"--system", "be brief", "-n", "3"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "w0 w1 w2 \nw0 w1 w2 \n");
  const std::vector<Json> bodies = server.bodies();
  ASSERT_EQ(bodies.size(), 2u);
  EXPECT_EQ(bodies[0].find("model")->as_string(), "mock");
  EXPECT_EQ(bodies[0].find("max_completion_tokens")->as_int(), 3);
  ASSERT_EQ(bodies[1].find("messages")->items().size(), 4u);
  EXPECT_EQ(content(bodies[1], 0), "be brief");
  EXPECT_EQ(content(bodies[1], 1), "hello");
  EXPECT_EQ(content(bodies[1], 2), "w0 w1 w2 ");
  EXPECT_EQ(content(bodies[1], 3), "and now");
}

TEST(RemoteChat, CommandsAreThoseOfALocalChat) {
  MockTextServer server;

  const ProgramResult r =
      chat(server, "/stats\na\n/stats\n/system other words\nb\n/help\n/clear\nc\n/exit\nnever\n");

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("no answer yet"));
  EXPECT_THAT(r.out, HasSubstr("1 prompt tokens (0 cached), first token after "));
  EXPECT_THAT(r.out, HasSubstr("4 tokens"));
  EXPECT_THAT(r.out, HasSubstr("/system [TEXT]"));
  const std::vector<Json> bodies = server.bodies();
  ASSERT_EQ(bodies.size(), 3u);
  EXPECT_EQ(content(bodies[1], 0), "other words");
  EXPECT_EQ(bodies[2].find("messages")->items().size(), 1u);
}

TEST(RemoteChat, AMessageIsAnsweredAgainAndChanged) {
  MockTextServer server;

  const ProgramResult r = chat(server, "a\n/regenerate\n/edit b\n/set max_tokens 2\nc\n");

  EXPECT_EQ(r.exit_code, 0) << r.err;
  const std::vector<Json> bodies = server.bodies();
  ASSERT_EQ(bodies.size(), 4u);
  EXPECT_EQ(bodies[1].find("messages")->items().size(), 1u);
  EXPECT_EQ(content(bodies[1], 0), "a");
  EXPECT_EQ(bodies[2].find("messages")->items().size(), 1u);
  EXPECT_EQ(content(bodies[2], 0), "b");
  EXPECT_EQ(bodies[2].find("max_completion_tokens"), nullptr);
  EXPECT_EQ(bodies[3].find("max_completion_tokens")->as_int(), 2);
  EXPECT_EQ(content(bodies[3], 2), "c");
}

TEST(RemoteChat, ARefusedAnswerLeavesTheOneBefore) {
  MockTextServer server({.fail_every = 2});

  const ProgramResult r = chat(server, "a\n/regenerate\nb\n");

  EXPECT_THAT(r.err, HasSubstr("429 queue_full"));
  EXPECT_EQ(server.bodies()[2].find("messages")->items().size(), 3u);
}

TEST(RemoteChat, TheServerCountsTokens) {
  MockTextServer server;
  MockTextServer silent({.tokenizes = false});

  const ProgramResult counted = chat(server, "a b\n/tokens\n", {"-n", "3"});
  const ProgramResult unknown = chat(silent, "a b\n/tokens\n", {"-n", "3"});

  EXPECT_EQ(counted.out, "w0 w1 w2 \n5 tokens of conversation, a context of 100, 95 left\n");
  EXPECT_EQ(unknown.exit_code, 69);
  EXPECT_THAT(unknown.err, HasSubstr("does not count the tokens of a conversation"));
}

TEST(RemoteChat, AConversationIsSavedAndLoaded) {
  MockTextServer server({.reasons = true});
  TempFolder folder;
  const std::string file = (folder / "c.json").string();

  const ProgramResult saved = chat(server, "a\n/save " + file + "\n");
  const ProgramResult loaded = chat(server, "/load " + file + "\nb\n");

  EXPECT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_EQ(loaded.exit_code, 0) << loaded.err;
  const Json body = server.bodies()[1];
  EXPECT_EQ(content(body, 0), "a");
  EXPECT_EQ(content(body, 1), "w2 w3 ");
  EXPECT_EQ(body.find("messages")->items()[1].find("reasoning_content")->as_string(), "w0 w1 ");
  EXPECT_EQ(content(body, 2), "b");
}

TEST(RemoteChat, ReasoningIsShownAndSentBackApart) {
  MockTextServer server({.reasons = true});

  const ProgramResult r = chat(server, "a\nb\n");

  EXPECT_EQ(r.out, "w0 w1 \nw2 w3 \nw0 w1 \nw2 w3 \n");
  const Json turn = server.bodies()[1].find("messages")->items()[1];
  EXPECT_EQ(turn.find("content")->as_string(), "w2 w3 ");
  EXPECT_EQ(turn.find("reasoning_content")->as_string(), "w0 w1 ");
}

TEST(RemoteChat, SamplingAndThinkingArePassedOn) {
  MockTextServer server;

  const ProgramResult r = chat(server, "a\n",
                               {"--temperature", "0.5", "--top-p", "0.9", "--top-k", "7", "--seed",
                                "18446744073709551615", "--stop", "X", "--logit-bias", "5=-1",
                                "--thinking", "on", "--effort", "high", "--presence-penalty", "1"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  const Json body = server.bodies()[0];
  EXPECT_EQ(body.find("temperature")->as_double(), 0.5);
  EXPECT_EQ(body.find("top_p")->as_double(), 0.9);
  EXPECT_EQ(body.find("top_k")->as_int(), 7);
  EXPECT_EQ(body.find("seed")->as_uint(), UINT64_MAX);
  EXPECT_EQ(body.find("stop")->items()[0].as_string(), "X");
  EXPECT_EQ(body.find("logit_bias")->find("5")->as_double(), -1);
  EXPECT_EQ(body.find("presence_penalty")->as_double(), 1);
  EXPECT_EQ(body.find("chat_template_kwargs")->find("thinking")->as_bool(), true);
  EXPECT_EQ(body.find("reasoning_effort")->as_string(), "high");
  EXPECT_EQ(body.find("max_completion_tokens"), nullptr);
}

TEST(RemoteChat, AnErrorLeavesTheConversationAsItWas) {
  MockTextServer server({.fail_every = 2});

  const ProgramResult r = chat(server, "a\nrefused\nb\n");

  EXPECT_EQ(r.exit_code, 0);
  EXPECT_THAT(r.err, HasSubstr("429 queue_full: the queue is full"));
  EXPECT_THAT(r.err, HasSubstr("/clear starts again"));
  const Json last = server.bodies()[2];
  ASSERT_EQ(last.find("messages")->items().size(), 3u);
  EXPECT_EQ(content(last, 2), "b");
}

TEST(RemoteChat, CtrlCClosesTheStreamAndKeepsWhatWasSaid) {
  MockTextServer server({.token_delay_ms = 20});
  TempFolder folder;
  const std::string pid_file = (folder / "pid").string();
  std::thread interrupter([&] {
    while (server.bodies().empty())
      std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    ::kill(static_cast<pid_t>(std::strtol(read_all(pid_file).c_str(), nullptr, 10)), SIGINT);
  });

  const ProgramResult r = run_fathom({"chat", "--url", server.url(), "-n", "100000"}, "a\n/stats\n",
                                     [&] { std::ofstream(pid_file) << getpid(); });
  interrupter.join();

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("w0 w1 "));
  EXPECT_THAT(r.out, HasSubstr("(stopped)"));
  while (server.left() == 0)
    std::this_thread::yield();
}

TEST(RemoteChat, WhatTheServerDecidesIsRefused) {
  MockTextServer server;
  const auto refused = [&](const Words& flags, const std::string& says) {
    const ProgramResult r = chat(server, "a\n", flags);
    EXPECT_EQ(r.exit_code, 64) << says << r.err;
    EXPECT_THAT(r.err, HasSubstr(says));
  };

  refused({shipped_model()}, "MODEL is '" + shipped_model() + "', and --url");
  refused({"--max-model-len", "100"}, "--max-model-len is 100, which changes nothing with --url");
  refused({"--chat-format", "v3"}, "--chat-format is 'v3'");
  refused({"--temperature", "-1"}, "temperature");
  const ProgramResult local = run_fathom({"chat", shipped_model(), "--insecure"}, "a\n");
  EXPECT_EQ(local.exit_code, 64);
  EXPECT_THAT(local.err, HasSubstr("are for --url"));
  EXPECT_TRUE(server.bodies().empty());
}

TEST(RemoteChat, ANameOfTheServersChoicesIsTakenAsItIs) {
  MockTextServer server;

  const ProgramResult r = chat(server, "a\n", {"--model", "other"});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(server.bodies()[0].find("model")->as_string(), "other");
}

}  // namespace
}  // namespace fathom::e2e
