// `fathom chat` with lines from a pipe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

ProgramResult chat(const std::string& input, const Words& flags = {}) {
  Words args{"chat", shipped_model(), "--temperature", "0", "--threads", "1"};
  args.insert(args.end(), flags.begin(), flags.end());
  return run_fathom(args, input);
}

/// "37 prompt tokens", the first words of the last /stats.
std::string last_stats(const std::string& out) {
  const size_t end = out.rfind(" prompt tokens");
  if (end == std::string::npos) return out;
  const size_t begin = out.rfind('\n', end) + 1;
  return out.substr(begin, end - begin);
}

int64_t tokens_of(const std::string& text) {
  return std::strtol(text.c_str(), nullptr, 10);
}

TEST(Chat, ThoughtsEndWithoutTheirMarker) {
  const ProgramResult ids = run_fathom({"tokenize", shipped_model(), "-p", "</think>", "--ids"});
  ASSERT_EQ(std::count(ids.out.begin(), ids.out.end(), ','), 0) << ids.out;
  const std::string bias = ids.out.substr(1, ids.out.find(']') - 1) + "=100";

  const ProgramResult r =
      chat("Once\nAnd then\n", {"--thinking", "on", "-n", "1", "--logit-bias", bias});

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "\n\n");
}

TEST(Chat, ThoughtsAndAnswerStandOnLinesOfTheirOwn) {
  const Words thinking = {"--thinking", "on", "-n", "12"};
  const std::string whole = chat("Once\n", thinking).out;
  const ProgramResult none = chat("Once\n", {"--thinking", "off", "-n", "12"});

  EXPECT_GT(whole.size(), 12u);
  EXPECT_THAT(whole, Not(HasSubstr("think>")));
  EXPECT_THAT(none.out, Not(HasSubstr("think>")));
}

TEST(Chat, OldestTurnsAreForgottenWhereTheContextIsFull) {
  const Words flags = {"--max-model-len", "64", "-n", "8", "--system", "Be kind to the king."};
  std::string input;
  for (int i = 0; i < 6; ++i)
    input += "Once upon a time there was a cat.\n";
  input += "/stats\n";

  const ProgramResult r = chat(input, flags);
  const ProgramResult one = chat("Once upon a time there was a cat.\n/stats\n", flags);

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.err, HasSubstr("the context of 64 tokens is full: the oldest messages were "
                               "forgotten"));
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 7);
  // Two turns and the system message fit; a first turn alone shows that the message is still there.
  EXPECT_GE(tokens_of(last_stats(r.out)), tokens_of(last_stats(one.out)));
  EXPECT_LE(tokens_of(last_stats(r.out)), 56);
}

TEST(Chat, MessageThatDoesNotFitAloneEndsAPipedChat) {
  std::string line;
  for (int i = 0; i < 80; ++i)
    line += "story ";

  const ProgramResult r = chat("Once\n" + line + "\nnever\n", {"--max-model-len", "48", "-n", "4"});
  const ProgramResult silent = chat(line + "\n", {"--max-model-len", "48"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("and the answer 4 (--max-tokens), but the context holds 48"));
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1) << "the first line is answered";
  EXPECT_EQ(silent.exit_code, 64);
  EXPECT_THAT(silent.err, Not(HasSubstr("max_tokens")));
}

}  // namespace
}  // namespace fathom::e2e
