#include "fathom/runtime/draft/ngram_index.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

// By the definition: every earlier place, the longest match, the latest of equally long ones.
int64_t find_by_hand(const std::vector<int32_t>& tokens) {
  const auto size = static_cast<int64_t>(tokens.size());
  int64_t best = -1;
  int64_t longest = NgramIndex::kShortest;
  for (int64_t place = 0; place + 1 < size; ++place) {
    int64_t n = 0;
    while (n <= place && n < NgramIndex::kLongest &&
           tokens[size_t(place - n)] == tokens[size_t(size - 1 - n)]) {
      ++n;
    }
    if (n < longest) continue;
    longest = n;
    best = place + 1;
  }
  return best;
}

int64_t find_in(const std::vector<int32_t>& tokens) {
  NgramIndex index;
  index.follow(tokens);
  return index.find(tokens);
}

TEST(NgramIndex, GoesOnBehindTheLongestMatch) {
  EXPECT_EQ(find_in({1, 2, 3, 4, 5, 1, 9, 2, 3, 4, 6, 1, 2, 3, 4}), 4);
}

TEST(NgramIndex, TheLatestOfEquallyLongMatchesWins) {
  EXPECT_EQ(find_in({7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3}), 9);
}

TEST(NgramIndex, ALoopMatchesItself) {
  EXPECT_EQ(find_in({5, 5, 5, 5}), 3);
}

TEST(NgramIndex, FindsNothingInShortAndFreshTexts) {
  for (const std::vector<int32_t>& tokens :
       {std::vector<int32_t>{}, {1}, {1, 1}, {1, 1, 1}, {1, 2, 3, 4, 5, 6}, {1, 2, 9, 1, 2}})
    EXPECT_EQ(find_in(tokens), -1);
}

// Few enough places of a run that the whole chain is looked at.
TEST(NgramIndex, AgreesWithTheDefinitionTokenByToken) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    const auto ids = static_cast<uint32_t>(4 + seed % 3);
    NgramIndex index;
    std::vector<int32_t> tokens;
    for (int i = 0; i < 400; ++i) {
      const auto piece = 1 + rng.next_below(3);
      for (uint32_t k = 0; k < piece; ++k)
        tokens.push_back(static_cast<int32_t>(rng.next_below(ids) * 1000 + 3));
      index.follow(tokens);
      std::vector<int32_t> run(tokens.end() - std::min<int64_t>(3, int64_t(tokens.size())),
                               tokens.end());
      int64_t places = 0;
      for (size_t p = 0; p + run.size() <= tokens.size(); ++p)
        places += std::equal(run.begin(), run.end(), tokens.begin() + int64_t(p)) ? 1 : 0;
      if (places > NgramIndex::kMostPlaces) continue;
      ASSERT_EQ(index.find(tokens), find_by_hand(tokens)) << "seed " << seed << ", token " << i;
    }
  }
}

}  // namespace
}  // namespace fathom
