#include "fathom/runtime/kv/sequence_cache.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(SequenceCache, TakesBlocksAtTheirBordersOnly) {
  CachePools pools(4, INT64_MAX, 3, 0);
  SequenceCache cache;

  for (const auto& [tokens, blocks] : {std::pair{0, 0}, {4, 1}, {3, 1}, {5, 2}, {12, 3}}) {
    ASSERT_TRUE(cache.has_room(pools, tokens));
    ASSERT_TRUE(cache.grow(pools, tokens));
    EXPECT_EQ(static_cast<int>(cache.blocks().size()), blocks) << tokens;
  }
  EXPECT_FALSE(cache.has_room(pools, 13));
  EXPECT_FALSE(cache.grow(pools, 13));
  EXPECT_EQ(cache.blocks().size(), 3u);
  cache.release_all(pools);
  EXPECT_EQ(pools.blocks.num_free(), 3);
}

TEST(SequenceCache, TakesAllOrNothing) {
  CachePools pools(4, 0, 5, 1);
  SequenceCache first;
  SequenceCache second;
  ASSERT_TRUE(first.grow(pools, 4));

  EXPECT_FALSE(second.has_room(pools, 4)) << "there is no slot";
  EXPECT_FALSE(second.grow(pools, 4));

  EXPECT_TRUE(second.empty());
  EXPECT_EQ(pools.blocks.num_free(), 4);
  first.release_all(pools);
  EXPECT_FALSE(second.grow(pools, 24));
  EXPECT_TRUE(second.empty());
  EXPECT_EQ(pools.slots.num_free(), 1);
}

TEST(SequenceCache, TruncateGivesBackWholeBlocksBehindTheTokens) {
  CachePools pools(4, INT64_MAX, 6, 0);
  SequenceCache cache;
  ASSERT_TRUE(cache.grow(pools, 21));
  const std::vector<PageId> before(cache.blocks().begin(), cache.blocks().end());

  cache.truncate(pools, 9);
  EXPECT_EQ(std::vector<PageId>(cache.blocks().begin(), cache.blocks().end()),
            std::vector<PageId>(before.begin(), before.begin() + 3));
  EXPECT_EQ(pools.blocks.num_free(), 3);
  cache.truncate(pools, 8);
  EXPECT_EQ(cache.blocks().size(), 2u);
  cache.truncate(pools, 8);
  EXPECT_EQ(cache.blocks().size(), 2u);
}

TEST(SequenceCache, RingsLimitHowFarItIsCutBack) {
  const CachePools pools(4, 3, 6, 2);

  EXPECT_TRUE(SequenceCache::can_truncate(pools, 10, 7));
  EXPECT_FALSE(SequenceCache::can_truncate(pools, 10, 6));
}

TEST(SequenceCache, SnapshotIsAnotherSlotAndResumeCopiesItBack) {
  CachePools pools(4, 0, 6, 2);
  SequenceCache cache;
  ASSERT_TRUE(cache.grow(pools, 4));

  const auto [taken, copy] = cache.snapshot(pools);

  ASSERT_TRUE(taken);
  EXPECT_EQ(copy.from, cache.slot());
  EXPECT_NE(copy.to, cache.slot());
  EXPECT_EQ(cache.resume(copy.to), (SlotCopy{.from = copy.to, .to = cache.slot()}));
  EXPECT_FALSE(cache.snapshot(pools).first) << "no slot is left";
  pools.slots.release(copy.to);
}

TEST(SequenceCache, WithoutSlotsThereIsNoSnapshot) {
  CachePools pools(4, INT64_MAX, 6, 0);
  SequenceCache cache;
  ASSERT_TRUE(cache.grow(pools, 4));

  EXPECT_EQ(cache.slot(), kNoPage);
  EXPECT_FALSE(cache.snapshot(pools).first);
}

}  // namespace
}  // namespace fathom
