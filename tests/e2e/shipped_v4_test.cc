// The shipped model of V4 through the program: it tells a story, and answers what its original
// does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;

std::string shipped_v4() {
  return std::string(FATHOM_SOURCE_DIR) + "/models/tiny-v4-nvfp4";
}

std::string story(const std::string& threads) {
  const ProgramResult r =
      run_fathom({"run", shipped_v4(), "-p", "Once upon a time", "--temperature", "0",
                  "--max-tokens", "48", "--threads", threads});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return r.out;
}

// A prompt of 5 tokens and 48 more: past the first rows of compressed keys, ring and all.
TEST(ShippedV4, TellsTheSameStoryWithAnyNumberOfThreads) {
  const std::string text = story("1");

  EXPECT_THAT(text, HasSubstr(" there "));
  EXPECT_GT(text.size(), 100u);
  EXPECT_EQ(story("2"), text);
  EXPECT_EQ(story("3"), text);
}

TEST(ShippedV4, AnswersAsItsOriginalDoes) {
  const std::pair<const char*, const char*> answers[] = {
      {"What is the capital of Japan?", "The capital of Japan is Tokyo."},
      {"What does a cow say?", "Moo!"},
      {"How do you spell castle?", "C-A-S-T-L-E."},
      {"Answer in JSON with the keys \"country\" and \"capital\". What is the capital of Italy?",
       R"({"country": "Italy", "capital": "Rome"})"},
      {"Who are you?", "I am a very small language model. I like to tell stories."}};
  for (const auto& [question, answer] : answers) {
    const ProgramResult r =
        run_fathom({"chat", shipped_v4(), "--temperature", "0"}, std::string(question) + "\n");

    EXPECT_EQ(r.exit_code, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr(answer)) << question;
  }
}

// 300 tokens: more than a window, and more compressed rows than the indexer chooses.
TEST(ShippedV4, GoesOnBeyondItsWindow) {
  std::string prompt = "Once upon a time there was a king who had three daughters.";
  for (int i = 0; i < 16; ++i)
    prompt +=
        " The youngest was so beautiful that the sun himself, who had seen so much, wondered.";

  const ProgramResult r = run_fathom(
      {"run", shipped_v4(), "-f", "-", "--temperature", "0", "--max-tokens", "24"}, prompt);

  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, testing::ContainsRegex("[a-z]+ [a-z]+ [a-z]+"));
}

}  // namespace
}  // namespace fathom::e2e
