#include "fathom/runtime/kv/prefix_cache.h"

#include <gtest/gtest.h>
#include <numeric>
#include <set>

namespace fathom {
namespace {

constexpr int kBlock = 4;

PrefixDomain domain() {
  return {.model_fingerprint = "m", .block_size = kBlock, .compute = "bf16/by-phase"};
}

std::vector<int32_t> iota(int64_t n, int32_t first = 0) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), first);
  return v;
}

// A pool with a cache, and the steps a scheduler would do.
struct Fixture {
  explicit Fixture(int64_t pages = 16, PrefixDomain d = domain()) : pool(pages), cache(pool, d) {}

  // Computes and publishes all complete pages of `tokens`, then lets them go.
  void store(const std::vector<int32_t>& tokens, std::string_view salt = "") {
    BlockTable table(kBlock);
    ASSERT_TRUE(table.grow(pool, static_cast<int64_t>(tokens.size())));
    PrefixKey parent = cache.root(salt);
    for (size_t i = 0; i + kBlock <= tokens.size(); i += kBlock) {
      const auto page_tokens = std::span(tokens).subspan(i, kBlock);
      const PrefixKey key = cache.extend(parent, page_tokens);
      cache.publish(key, parent, page_tokens, table.pages()[i / kBlock]);
      parent = key;
    }
    table.release_all(pool);
  }

  int64_t match(const std::vector<int32_t>& tokens, int64_t limit, std::string_view salt = "") {
    BlockTable table(kBlock);
    std::vector<PrefixKey> keys;
    const int64_t covered = cache.match(cache.root(salt), tokens, limit, table, keys);
    EXPECT_EQ(table.num_pages() * kBlock, covered);
    table.release_all(pool);
    return covered;
  }

  PagePool pool;
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
  std::vector<PrefixDomain> domains(6, domain());
  domains[1].model_fingerprint = "n";
  domains[2].layout_version = 2;
  domains[3].kv_format = Format::kE4m3;
  domains[4].block_size = 8;
  domains[5].compute = "bf16/absorbed";
  std::set<PrefixKey> roots;
  for (const PrefixDomain& d : domains) {
    PagePool pool(1);
    roots.insert(PrefixCache(pool, d).root("s"));
  }

  EXPECT_EQ(roots.size(), domains.size());
}

TEST(PrefixCache, BordersBetweenFieldsCount) {
  PagePool pool(1);
  PrefixDomain a = domain();
  PrefixDomain b = domain();
  a.model_fingerprint = "ab";
  a.compute = "c";
  b.model_fingerprint = "a";
  b.compute = "bc";
  const PrefixKey key_a = PrefixCache(pool, a).root("");
  const PrefixKey key_b = PrefixCache(pool, b).root("");

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
  BlockTable table(kBlock);
  std::vector<PrefixKey> keys;
  ASSERT_EQ(f.cache.match(f.cache.root(""), iota(8), 8, table, keys), 8);
  std::vector<PageId> pages;

  EXPECT_FALSE(f.pool.take(1, pages));
  EXPECT_EQ(keys.size(), 2u);
  table.release_all(f.pool);
  EXPECT_TRUE(f.pool.take(1, pages));
}

}  // namespace
}  // namespace fathom
