#include "fathom/tokenizer/bpe.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <random>

namespace fathom {
namespace {

// Joins the pair of the lowest rank, leftmost first, by looking at all pairs each time.
std::vector<int32_t> naive(const std::vector<BpeMerge>& merges, std::string_view piece) {
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, int32_t>> ranks;
  for (size_t i = 0; i < merges.size(); ++i) {
    ranks[{merges[i].left, merges[i].right}] = {i, merges[i].result};
  }
  std::vector<int32_t> tokens;
  for (const char c : piece)
    tokens.push_back(static_cast<unsigned char>(c));
  while (true) {
    size_t best = tokens.size();
    size_t best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = ranks.find({tokens[i], tokens[i + 1]});
      if (found == ranks.end() || found->second.first >= best_rank) continue;
      best = i;
      best_rank = found->second.first;
    }
    if (best == tokens.size()) return tokens;
    tokens[best] = ranks[{tokens[best], tokens[best + 1]}].second;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

Bpe::ByteTokens identity() {
  Bpe::ByteTokens tokens{};
  for (int32_t byte = 0; byte < 256; ++byte)
    tokens[byte] = byte;
  return tokens;
}

std::vector<int32_t> encode(const Bpe& bpe, std::string_view piece) {
  std::vector<int32_t> ids;
  Bpe::Scratch scratch;
  bpe.encode(piece, ids, scratch);
  return ids;
}

// Merges over the bytes a, b, c and their products, in random order.
std::vector<BpeMerge> random_merges(std::mt19937& random, int count) {
  std::vector<int32_t> tokens = {'a', 'b', 'c'};
  std::vector<BpeMerge> merges;
  std::map<std::pair<int32_t, int32_t>, bool> seen;
  for (int32_t next = 256; next < 256 + count; ++next) {
    const int32_t left = tokens[random() % tokens.size()];
    const int32_t right = tokens[random() % tokens.size()];
    if (std::exchange(seen[{left, right}], true)) continue;
    merges.push_back({left, right, next});
    tokens.push_back(next);
  }
  std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

TEST(Bpe, EqualsTheNaiveEncoder) {
  std::mt19937 random{31};
  for (int round = 0; round < 300; ++round) {
    const auto merges = random_merges(random, static_cast<int>(random() % 60));
    const auto bpe = Bpe::make(identity(), merges);
    ASSERT_TRUE(bpe.ok());
    for (const size_t length : {0, 1, 2, 3, 7, 47, 48, 49, 50, 97, 211}) {
      std::string piece;
      const size_t num_letters = 1 + random() % 3;
      for (size_t i = 0; i < length; ++i)
        piece.push_back("abc"[random() % num_letters]);
      ASSERT_EQ(encode(*bpe, piece), naive(merges, piece)) << "round " << round << ": " << piece;
    }
  }
}

TEST(Bpe, LeavesOutBytesWithoutAToken) {
  Bpe::ByteTokens tokens = identity();
  tokens['b'] = Bpe::kNoToken;
  const auto bpe = Bpe::make(tokens, {{'a', 'a', 300}});
  ASSERT_TRUE(bpe.ok());

  EXPECT_EQ(encode(*bpe, "aba"), (std::vector<int32_t>{300}));
  EXPECT_EQ(encode(*bpe, "bbb"), std::vector<int32_t>{});
  EXPECT_EQ(encode(*bpe, std::string(100, 'b')), std::vector<int32_t>{});
  EXPECT_EQ(encode(*bpe, std::string(100, 'b') + "aa"), (std::vector<int32_t>{300}));
}

TEST(Bpe, OfEqualPairsTheLaterMergeCounts) {
  const auto bpe = Bpe::make(identity(), {{'a', 'b', 300}, {'b', 'c', 301}, {'a', 'b', 302}});
  ASSERT_TRUE(bpe.ok());

  EXPECT_EQ(encode(*bpe, "ab"), (std::vector<int32_t>{302}));
  EXPECT_EQ(encode(*bpe, "abc"), (std::vector<int32_t>{'a', 301}));
}

TEST(Bpe, AppendsToWhatIsThere) {
  const auto bpe = Bpe::make(identity(), {});
  ASSERT_TRUE(bpe.ok());
  std::vector<int32_t> ids = {7};
  Bpe::Scratch scratch;

  bpe->encode("a", ids, scratch);
  bpe->encode(std::string(60, 'b'), ids, scratch);

  EXPECT_EQ(ids.size(), 62u);
  EXPECT_EQ(ids[0], 7);
  EXPECT_EQ(ids[1], 'a');
}

}  // namespace
}  // namespace fathom
