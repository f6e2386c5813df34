#include "fathom/tokenizer/answer/answer_stream.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr AnswerGrammar kThinking{.knows_thinking = true, .starts_in_reasoning = true};

const Tokenizer& tokenizer() {
  static const Tokenizer loaded =
      Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3").value();
  return loaded;
}

std::vector<int32_t> ids_of(std::string_view text) {
  return tokenizer().encode(text, {.added_tokens = AddedTokens::kParse});
}

struct Parts {
  std::string reasoning;
  std::string content;

  void add(const AnswerDelta& news) {
    reasoning += news.reasoning;
    content += news.content;
  }
};

TEST(AnswerStream, PartsComeWithTheTokensOfTheirText) {
  AnswerStream stream(tokenizer(), kThinking, {}, false);
  const std::vector<int32_t> ids = ids_of("a cat?</think>Once upon");
  Parts parts;

  for (size_t i = 0; i < ids.size(); ++i)
    parts.add(stream.read({.token = ids[i], .last = i + 1 == ids.size()}));

  EXPECT_EQ(parts.reasoning, "a cat?");
  EXPECT_EQ(parts.content, "Once upon");
  EXPECT_EQ(stream.reasoning_tokens(), static_cast<int64_t>(ids_of("a cat?</think>").size()));
}

// The engine hands out a text late where a stop string may begin, and never the string itself.
TEST(AnswerStream, WhatIsHeldBackForAStopStringIsNoPartYet) {
  AnswerStream stream(tokenizer(), kThinking, {}, true);
  const std::vector<int32_t> ids = ids_of("x</think>ab");
  ASSERT_GE(ids.size(), 3u);
  Parts parts;

  for (const int32_t id : ids)
    parts.add(stream.read({.token = id}));
  EXPECT_EQ(parts.reasoning + parts.content, "");
  parts.add(stream.read({.text = "x"}));
  EXPECT_EQ(parts.reasoning, "x");
  EXPECT_EQ(parts.content, "");

  parts.add(stream.read({.text = "</think>a", .stop_text = "b", .last = true}));

  EXPECT_EQ(parts.reasoning, "x");
  EXPECT_EQ(parts.content, "a");
}

}  // namespace
}  // namespace fathom
