#include "fathom/bench/child_process.h"

#include <csignal>
#include <gtest/gtest.h>
#include <unistd.h>
#include <vector>

namespace fathom {
namespace {

using Messages = std::vector<std::pair<char, std::string>>;

Messages messages;

Result<ChildEnd> run(const std::function<void(const SendMessage&)>& work) {
  messages.clear();
  return run_in_child(
      work, [](char kind, std::string_view bytes) { messages.emplace_back(kind, bytes); });
}

TEST(ChildProcess, MessagesArriveWholeAndInOrder) {
  const std::string large(1 << 20, 'x');

  const ChildEnd end = run([&](const SendMessage& send) {
                         send('A', "");
                         send('B', large);
                         send('C', std::string_view("a\0b", 3));
                       }).value();

  EXPECT_FALSE(end.crashed());
  EXPECT_EQ(messages,
            (Messages{{'A', ""}, {'B', large}, {'C', std::string(std::string_view("a\0b", 3))}}));
}

TEST(ChildProcess, ASignalIsNamedAndWhatWasSentBeforeItArrives) {
  const ChildEnd end = run([](const SendMessage& send) {
                         send('R', "row");
                         raise(SIGKILL);
                       }).value();

  EXPECT_EQ(end.how, "signal 9 (Killed)");
  EXPECT_EQ(messages, (Messages{{'R', "row"}}));
}

TEST(ChildProcess, AnExitCodeIsNamed) {
  EXPECT_EQ(run([](const SendMessage&) { _exit(3); }).value().how, "exit code 3");
  EXPECT_TRUE(messages.empty());
}

TEST(ChildProcess, IsKilledWhenTheParentIsToldToStop) {
  messages.clear();

  const ChildEnd end =
      run_in_child(
          [](const SendMessage& send) {
            send('R', "row");
            for (;;)
              pause();
          },
          [](char kind, std::string_view bytes) { messages.emplace_back(kind, bytes); },
          [] { return !messages.empty(); })
          .value();

  EXPECT_EQ(end.how, "signal 9 (Killed)");
  EXPECT_EQ(messages, (Messages{{'R', "row"}}));
}

TEST(ChildProcess, WhatItSentBeforeItIsKilledArrives) {
  messages.clear();
  int sent[2];
  ASSERT_EQ(pipe(sent), 0);

  const ChildEnd end =
      run_in_child(
          [&](const SendMessage& send) {
            send('R', "row");
            if (write(sent[1], "!", 1) != 1) _exit(1);
            for (;;)
              pause();
          },
          [](char kind, std::string_view bytes) { messages.emplace_back(kind, bytes); },
          [&] {
            char byte = 0;
            return read(sent[0], &byte, 1) == 1;  // asked before anything is read
          })
          .value();

  EXPECT_EQ(end.how, "signal 9 (Killed)");
  EXPECT_EQ(messages, (Messages{{'R', "row"}}));
  close(sent[0]);
  close(sent[1]);
}

TEST(ChildProcess, EndsWhenItIsInterruptedWhateverItsParentDoesThen) {
  const auto handler = std::signal(SIGINT, SIG_IGN);

  const ChildEnd end = run([](const SendMessage&) { raise(SIGINT); }).value();

  EXPECT_EQ(end.how, "signal 2 (Interrupt)");
  std::signal(SIGINT, handler);
}

TEST(ChildProcess, MemoryOfTheParentStaysAsItWas) {
  int value = 1;

  EXPECT_FALSE(run([&](const SendMessage&) { value = 2; }).value().crashed());

  EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace fathom
