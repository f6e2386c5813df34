#include "fathom/tokenizer/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using ::testing::HasSubstr;

TEST(Vocabulary, FindsWhatWasAdded) {
  Vocabulary vocabulary;
  for (const int count : {1, 2, 3, 1000}) {
    vocabulary = {};
    for (int i = 0; i < count; ++i)
      ASSERT_TRUE(vocabulary.add(str_cat("Ġtoken", i), i * 3).ok());
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(vocabulary.find(str_cat("Ġtoken", i)), i * 3);
      EXPECT_EQ(vocabulary.text(i * 3), str_cat("Ġtoken", i));
      EXPECT_EQ(vocabulary.bytes(i * 3), str_cat(" token", i));
    }
    EXPECT_EQ(vocabulary.size(), (count - 1) * 3 + 1);
    EXPECT_EQ(vocabulary.find("token"), std::nullopt);
    EXPECT_EQ(vocabulary.find(""), std::nullopt);
  }
}

TEST(Vocabulary, HasGaps) {
  Vocabulary vocabulary;
  ASSERT_TRUE(vocabulary.add("x", 5).ok());

  for (const int64_t id : {-1ll, 0ll, 4ll, 6ll, 1ll << 40})
    EXPECT_FALSE(vocabulary.contains(id)) << id;
  EXPECT_TRUE(vocabulary.contains(5));
  EXPECT_EQ(vocabulary.text(4), "");
  EXPECT_EQ(vocabulary.bytes(-1), "");
}

TEST(Vocabulary, EnforcesLimits) {
  Vocabulary vocabulary;

  EXPECT_TRUE(vocabulary.add("last", kMaxVocabulary - 1).ok());
  EXPECT_THAT(vocabulary.add("x", kMaxVocabulary).message(), HasSubstr("expected 0 to 1048575"));
  EXPECT_THAT(vocabulary.add("x", -1).message(), HasSubstr("has the id -1"));
  EXPECT_THAT(vocabulary.add("", 1).message(), HasSubstr("is empty"));
  EXPECT_TRUE(vocabulary.add(std::string(1024, 'x'), 1).ok());
  EXPECT_THAT(vocabulary.add(std::string(1025, 'x'), 2).message(), HasSubstr("has 1025 bytes"));
}

TEST(Vocabulary, RefusesContradictions) {
  Vocabulary vocabulary;
  ASSERT_TRUE(vocabulary.add("a", 1).ok());

  EXPECT_EQ(vocabulary.add("b", 1).message(), "the tokens \"a\" and \"b\" both have the id 1");
  EXPECT_EQ(vocabulary.add("a", 2).message(), "the token \"a\" has the ids 1 and 2");
}

}  // namespace
}  // namespace fathom
