#include "fathom/tokenizer/added_tokens.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace fathom {
namespace {

AddedTokenMatcher make(const std::vector<std::string>& texts) {
  AddedTokenMatcher matcher;
  for (size_t i = 0; i < texts.size(); ++i)
    matcher.add(texts[i], static_cast<int32_t>(i));
  matcher.finish();
  return matcher;
}

TEST(AddedTokenMatcher, FindsTheLeftmostAndOfThoseTheLongest) {
  const AddedTokenMatcher matcher = make({"ab", "abcd", "bcde", "b"});

  const auto match = matcher.find("xabcde", 0);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->begin, 1u);
  EXPECT_EQ(match->end, 5u);
  EXPECT_EQ(match->id, 1);
  EXPECT_EQ(matcher.find("abc", 0)->id, 0);
  EXPECT_EQ(matcher.find("abcd", 1)->id, 3);
  EXPECT_FALSE(matcher.find("acd", 0).has_value());
  EXPECT_FALSE(matcher.find("ab", 2).has_value());
}

TEST(AddedTokenMatcher, FindsNothingWithoutTokens) {
  EXPECT_FALSE(make({}).find("abc", 0).has_value());
  EXPECT_TRUE(make({}).empty());
}

TEST(AddedTokenMatcher, EqualsASearchOfEachTokenAtEachPlace) {
  std::mt19937 random{41};
  const auto random_text = [&](size_t max_length) {
    std::string text;
    const size_t length = 1 + random() % max_length;
    for (size_t i = 0; i < length; ++i)
      text.push_back("ab\xFF"[random() % 3]);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> texts;
    for (size_t i = random() % 8; i > 0; --i)
      texts.push_back(random_text(5));
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    std::shuffle(texts.begin(), texts.end(), random);
    const std::string text = random_text(12);
    const AddedTokenMatcher matcher = make(texts);

    std::optional<AddedTokenMatcher::Match> expected;
    for (size_t begin = 0; begin < text.size() && !expected; ++begin) {
      for (size_t i = 0; i < texts.size(); ++i) {
        const bool fits = text.compare(begin, texts[i].size(), texts[i]) == 0;
        if (fits && (!expected || begin + texts[i].size() > expected->end)) {
          expected = {begin, begin + texts[i].size(), static_cast<int32_t>(i)};
        }
      }
    }
    const auto match = matcher.find(text, 0);
    ASSERT_EQ(match.has_value(), expected.has_value()) << "round " << round;
    if (!expected) continue;
    ASSERT_EQ(match->begin, expected->begin) << "round " << round;
    ASSERT_EQ(match->end, expected->end) << "round " << round;
    ASSERT_EQ(match->id, expected->id) << "round " << round;
  }
}

}  // namespace
}  // namespace fathom
