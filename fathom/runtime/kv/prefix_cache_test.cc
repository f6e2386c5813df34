#include "fathom/runtime/kv/prefix_cache.h"

#include <gtest/gtest.h>
#include <map>
#include <numeric>
#include <set>

namespace fathom {
namespace {

constexpr int64_t kBlock = 4;

PrefixDomain domain() {
  return {.model_fingerprint = "m", .layout = "latent", .compute = "bf16/by-phase"};
}

std::vector<int32_t> iota(int64_t n, int32_t first = 0) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), first);
  return v;
}

// A pool with a cache, and the steps a scheduler would do.
struct Fixture {
  explicit Fixture(int64_t blocks = 16, int64_t slots = 0)
      : pools(kBlock, INT64_MAX, blocks, slots), cache(pools, domain()) {}

  // Computes and publishes all complete pages of `tokens`, then lets them go.
  void store(const std::vector<int32_t>& tokens, std::string_view salt = "") {
    SequenceCache owned;
    ASSERT_TRUE(owned.grow(pools, static_cast<int64_t>(tokens.size())));
    PrefixKey parent = cache.root(salt);
    for (size_t i = 0; i + kBlock <= tokens.size(); i += kBlock) {
      const auto page_tokens = std::span(tokens).subspan(i, kBlock);
      const PrefixKey key = cache.extend(parent, page_tokens);
      cache.publish(key, parent, page_tokens, owned.blocks()[i / kBlock]);
      parent = key;
    }
    owned.release_all(pools);
  }

  int64_t match(const std::vector<int32_t>& tokens, int64_t limit, std::string_view salt = "") {
    SequenceCache owned;
    std::vector<PrefixKey> keys;
    const PrefixMatch found = cache.match(cache.root(salt), tokens, limit, owned, keys);
    EXPECT_EQ(static_cast<int64_t>(owned.blocks().size()) * kBlock, found.tokens);
    owned.release_all(pools);
    if (found.snapshot != kNoPage) pools.slots.release(found.snapshot);
    return found.tokens;
  }

  // Gives the block that ends at `end` a snapshot.
  PageId add_snapshot(const std::vector<int32_t>& tokens, int64_t end) {
    std::vector<PrefixKey> keys;
    const PrefixKey key = cache.key_of(cache.root(""), tokens, end / kBlock - 1, keys);
    EXPECT_TRUE(cache.wants_snapshot(key));
    std::vector<PageId> slot;
    EXPECT_TRUE(pools.slots.take(1, slot));
    cache.add_snapshot(key, slot[0]);
    EXPECT_FALSE(cache.wants_snapshot(key));
    return slot[0];
  }

  CachePools pools;
  PagePool& pool = pools.blocks;
  PrefixCache cache;
};

TEST(PrefixCache, FindsTheLongestChainOfCompletePages) {
  Fixture f;
  f.store(iota(11));

  EXPECT_EQ(f.match(iota(11), 11), 8);
  EXPECT_EQ(f.match(iota(8), 8), 8);
  EXPECT_EQ(f.match(iota(8), 7), 4);
  EXPECT_EQ(f.match(iota(7), 7), 4);
  EXPECT_EQ(f.match(iota(3), 3), 0);
  EXPECT_EQ(f.match({}, 0), 0);
}

TEST(PrefixCache, MissesWhenAnyEarlierTokenDiffers) {
  Fixture f;
  f.store(iota(12));
  for (size_t at = 0; at < 12; ++at) {
    std::vector<int32_t> tokens = iota(12);
    tokens[at] = 77;

    EXPECT_EQ(f.match(tokens, 12), static_cast<int64_t>(at) / kBlock * kBlock) << at;
  }
}

TEST(PrefixCache, SamePageBehindAnotherParentIsAnotherPage) {
  Fixture f;
  std::vector<int32_t> tokens = iota(4, 100);
  const std::vector<int32_t> tail = iota(4, 4);
  tokens.insert(tokens.end(), tail.begin(), tail.end());
  f.store(iota(8));

  EXPECT_EQ(f.match(tokens, 8), 0);
}

TEST(PrefixCache, SaltsDoNotShare) {
  Fixture f;
  f.store(iota(8), "tenant a");

  EXPECT_EQ(f.match(iota(8), 8, "tenant a"), 8);
  EXPECT_EQ(f.match(iota(8), 8, "tenant b"), 0);
  EXPECT_EQ(f.match(iota(8), 8, ""), 0);
}

TEST(PrefixCache, EveryFieldOfTheDomainChangesTheKeys) {
  std::vector<PrefixDomain> domains(4, domain());
  domains[1].model_fingerprint = "n";
  domains[2].layout = "window";
  domains[3].compute = "bf16/absorbed";
  std::set<PrefixKey> roots;
  for (const PrefixDomain& d : domains) {
    CachePools pools(kBlock, 0, 1, 0);
    roots.insert(PrefixCache(pools, d).root("s"));
  }

  EXPECT_EQ(roots.size(), domains.size());
}

// The last row of a draft layer in a page is made with the token behind it.
TEST(PrefixCache, PagesThatDependOnTheNextTokenAreFoundWithItAlone) {
  CachePools pools(kBlock, INT64_MAX, 8, 0);
  PrefixDomain following = domain();
  following.following = 1;
  PrefixCache cache(pools, following);
  const std::vector<int32_t> tokens = iota(9);
  const PrefixKey root = cache.root("");
  std::vector<PrefixKey> keys;
  SequenceCache owned;
  ASSERT_TRUE(owned.grow(pools, 8));
  for (int64_t i = 0; i < 2; ++i) {
    const PrefixKey key = cache.key_of(root, tokens, i, keys);
    const auto page = std::span(tokens).subspan(static_cast<size_t>(i * kBlock), kBlock);
    cache.publish(key, i == 0 ? root : keys[0], page, owned.blocks()[static_cast<size_t>(i)]);
  }
  owned.release_all(pools);
  const auto found = [&](const std::vector<int32_t>& asked, int64_t limit) {
    SequenceCache hit;
    std::vector<PrefixKey> asked_keys;
    const PrefixMatch match = cache.match(root, asked, limit, hit, asked_keys);
    hit.release_all(pools);
    return match.tokens;
  };
  std::vector<int32_t> parts_behind = tokens;
  parts_behind[8] = 77;
  std::vector<int32_t> parts_early = tokens;
  parts_early[4] = 77;

  EXPECT_EQ(found(tokens, 8), 8);
  EXPECT_EQ(found(iota(8), 8), 4) << "the token behind the second page is not known";
  EXPECT_EQ(found(parts_behind, 8), 4);
  EXPECT_EQ(found(parts_early, 8), 0);
}

TEST(PrefixCache, BordersBetweenFieldsCount) {
  CachePools pools(kBlock, 0, 1, 0);
  PrefixDomain a = domain();
  PrefixDomain b = domain();
  a.model_fingerprint = "ab";
  a.compute = "c";
  b.model_fingerprint = "a";
  b.compute = "bc";
  const PrefixKey key_a = PrefixCache(pools, a).root("");
  const PrefixKey key_b = PrefixCache(pools, b).root("");

  EXPECT_NE(key_a, key_b);
}

TEST(PrefixCache, KeysOfDifferentPagesDiffer) {
  Fixture f;
  std::set<PrefixKey> keys;
  const PrefixKey root = f.cache.root("");
  for (int32_t t = 0; t < 500; ++t) {
    keys.insert(f.cache.extend(root, std::vector<int32_t>{t, 0, 0, 0}));
    keys.insert(f.cache.extend(root, std::vector<int32_t>{0, 0, 0, 1000 + t}));
  }

  EXPECT_EQ(keys.size(), 1000u);
}

// A collision of 128 bits cannot be made, so an entry gets a key that is not its own.
TEST(PrefixCache, ComparesTokensOnAHit) {
  Fixture f;
  const PrefixKey root = f.cache.root("");
  const PrefixKey key = f.cache.extend(root, iota(4));
  std::vector<PageId> pages;
  ASSERT_TRUE(f.pool.take(1, pages));
  ASSERT_TRUE(f.cache.publish(key, root, iota(4, 50), pages[0]));

  EXPECT_EQ(f.match(iota(4), 4), 0);
  EXPECT_EQ(f.cache.stats().collisions, 1);
}

TEST(PrefixCache, ComparesTheParentOnAHit) {
  Fixture f;
  const PrefixKey root = f.cache.root("");
  const PrefixKey key = f.cache.extend(root, iota(4));
  std::vector<PageId> pages;
  ASSERT_TRUE(f.pool.take(1, pages));
  ASSERT_TRUE(f.cache.publish(key, f.cache.root("x"), iota(4), pages[0]));

  EXPECT_EQ(f.match(iota(4), 4), 0);
  EXPECT_EQ(f.cache.stats().collisions, 1);
}

TEST(PrefixCache, FirstContentWinsAndTheOtherStaysPrivate) {
  Fixture f;
  f.store(iota(4));
  const PrefixKey root = f.cache.root("");
  std::vector<PageId> pages;
  ASSERT_TRUE(f.pool.take(1, pages));

  EXPECT_FALSE(f.cache.publish(f.cache.extend(root, iota(4)), root, iota(4), pages[0]));

  EXPECT_EQ(f.pool.state(pages[0]), PageState::kPrivate);
  EXPECT_EQ(f.cache.size(), 1);
}

TEST(PrefixCache, ForgetsEvictedPagesTailFirst) {
  Fixture f(3);
  f.store(iota(12));
  ASSERT_EQ(f.match(iota(12), 12), 12);
  std::vector<PageId> pages;

  ASSERT_TRUE(f.pool.take(1, pages));
  EXPECT_EQ(f.match(iota(12), 12), 8);
  ASSERT_TRUE(f.pool.take(2, pages));

  EXPECT_EQ(f.match(iota(12), 12), 0);
  EXPECT_EQ(f.cache.size(), 0);
}

TEST(PrefixCache, HitOwnsItsPages) {
  Fixture f(2);
  f.store(iota(8));
  SequenceCache owned;
  std::vector<PrefixKey> keys;
  ASSERT_EQ(f.cache.match(f.cache.root(""), iota(8), 8, owned, keys).tokens, 8);
  std::vector<PageId> pages;

  EXPECT_FALSE(f.pool.take(1, pages));
  EXPECT_EQ(keys.size(), 2u);
  owned.release_all(f.pools);
  EXPECT_TRUE(f.pool.take(1, pages));
}

TEST(PrefixCache, HitOfAModelWithRingsEndsAtASnapshot) {
  Fixture f(16, 3);
  f.store(iota(12));
  EXPECT_EQ(f.match(iota(12), 12), 0);

  const PageId first = f.add_snapshot(iota(12), 4);
  EXPECT_EQ(f.match(iota(12), 12), 4);
  f.add_snapshot(iota(12), 12);

  EXPECT_EQ(f.match(iota(12), 12), 12);
  EXPECT_EQ(f.match(iota(12), 11), 4) << "the last snapshot lies behind the limit";
  SequenceCache owned;
  std::vector<PrefixKey> keys;
  const PrefixMatch found = f.cache.match(f.cache.root(""), iota(8), 8, owned, keys);
  EXPECT_EQ(found.tokens, 4);
  EXPECT_EQ(found.snapshot, first);
  EXPECT_EQ(f.pools.slots.owners(first), 1);
}

TEST(PrefixCache, SnapshotGoesWithItsSlotAndWithItsBlock) {
  Fixture f(3, 2);
  f.store(iota(12));
  f.add_snapshot(iota(12), 4);
  f.add_snapshot(iota(12), 12);
  std::vector<PageId> slots;

  ASSERT_TRUE(f.pools.slots.take(1, slots));  // evicts the older one
  EXPECT_EQ(f.match(iota(12), 12), 12);
  EXPECT_EQ(f.match(iota(12), 8), 0);
  std::vector<PageId> blocks;
  ASSERT_TRUE(f.pool.take(1, blocks));  // evicts the last block of the chain
  EXPECT_EQ(f.match(iota(12), 12), 0);
  ASSERT_TRUE(f.pools.slots.take(1, slots));  // a snapshot of nobody

  EXPECT_EQ(f.cache.size(), 2);
  EXPECT_TRUE(f.pools.slots.check_invariants().ok());
}

// Writes what it is told as "+N" (stored), "-N" (removed), "clear", where N is the first token.
struct Told final : PrefixObserver {
  void on_stored(const PrefixKey& key,
                 const PrefixKey& parent,
                 std::span<const int32_t> tokens) override {
    EXPECT_EQ(is_root(parent), tokens[0] == 0);
    EXPECT_FALSE(is_root(key));
    EXPECT_TRUE(is_root(parent) || first.contains(parent));
    first[key] = tokens[0];
    events.push_back(str_cat("+", tokens[0]));
  }

  void on_removed(const PrefixKey& key) override { events.push_back(str_cat("-", first.at(key))); }

  void on_cleared() override { events.push_back("clear"); }

  std::map<PrefixKey, int32_t> first;
  std::vector<std::string> events;
};

TEST(PrefixCache, TellsOfBlocksStoredOnceAndRemoved) {
  Fixture f(6);
  Told told;
  f.cache.set_observer(&told);
  f.store(iota(9));
  f.store(iota(12));

  // One more than is free: the end of the first chain was let go before its beginning.
  std::vector<PageId> pages;
  ASSERT_TRUE(f.pools.blocks.take(4, pages));

  EXPECT_EQ(told.events, (std::vector<std::string>{"+0", "+4", "+8", "-4"}));
}

TEST(PrefixCache, TellsOfAClearingAsOneOnlyWhenNothingStays) {
  Fixture f;
  Told told;
  f.cache.set_observer(&told);
  f.store(iota(8));
  SequenceCache owned;
  std::vector<PrefixKey> keys;
  ASSERT_EQ(f.cache.match(f.cache.root(""), iota(8), 4, owned, keys).tokens, 4);

  f.cache.clear();
  EXPECT_EQ(told.events, (std::vector<std::string>{"+0", "+4", "-4"}));
  owned.release_all(f.pools);
  f.cache.clear();

  EXPECT_EQ(told.events, (std::vector<std::string>{"+0", "+4", "-4", "clear"}));
  EXPECT_EQ(f.cache.size(), 0);
}

TEST(PrefixCache, TellsRootsFromBlocks) {
  const Fixture f;

  for (int i = 0; i < 64; ++i) {
    const PrefixKey root = f.cache.root(str_cat("salt", i));
    EXPECT_TRUE(is_root(root));
    EXPECT_FALSE(is_root(f.cache.extend(root, iota(kBlock, i))));
  }
}

}  // namespace
}  // namespace fathom
