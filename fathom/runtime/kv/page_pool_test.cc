#include "fathom/runtime/kv/page_pool.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

class Evicted : public PageObserver {
 public:
  void on_evict(PageId page) override { pages.push_back(page); }

  std::vector<PageId> pages;
};

std::vector<PageId> take(PagePool& pool, int64_t count) {
  std::vector<PageId> pages;
  EXPECT_TRUE(pool.take(count, pages));
  return pages;
}

TEST(PagePool, HandsOutEachPageOnce) {
  for (int64_t n : {0, 1, 2, 3, 17}) {
    PagePool pool(n);

    std::vector<PageId> pages = take(pool, n);

    std::ranges::sort(pages);
    for (int64_t i = 0; i < n; ++i)
      EXPECT_EQ(pages[static_cast<size_t>(i)], i);
    EXPECT_EQ(pool.num_available(), 0);
    EXPECT_EQ(pool.num_private(), n);
  }
}

TEST(PagePool, TakesAllOrNothing) {
  PagePool pool(3);
  std::vector<PageId> pages;

  EXPECT_FALSE(pool.take(4, pages));

  EXPECT_TRUE(pages.empty());
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_TRUE(pool.take(0, pages));
  EXPECT_TRUE(pages.empty());
}

TEST(PagePool, FreesPrivatePageWithItsOwner) {
  PagePool pool(2);
  const PageId page = take(pool, 1)[0];

  pool.release(page);

  EXPECT_EQ(pool.state(page), PageState::kFree);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PagePool, FreesSharedPageOnlyAfterLastOwner) {
  PagePool pool(1);
  const PageId page = take(pool, 1)[0];
  pool.publish(page);
  pool.add_owner(page);
  std::vector<PageId> out;

  pool.release(page);
  EXPECT_EQ(pool.owners(page), 1);
  EXPECT_FALSE(pool.take(1, out));
  pool.release(page);

  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_TRUE(pool.take(1, out));
}

TEST(PagePool, EvictsCachedPagesOldestFirstAndOnlyWhenNothingIsFree) {
  Evicted evicted;
  PagePool pool(4);
  pool.set_observer(&evicted);
  const std::vector<PageId> pages = take(pool, 3);
  for (PageId page : pages)
    pool.publish(page);
  for (int i : {1, 0, 2})
    pool.release(pages[static_cast<size_t>(i)]);

  (void)take(pool, 1);
  EXPECT_TRUE(evicted.pages.empty());
  (void)take(pool, 2);

  EXPECT_EQ(evicted.pages, (std::vector<PageId>{pages[1], pages[0]}));
  EXPECT_EQ(pool.num_evictions(), 2);
}

TEST(PagePool, PageThatIsUsedAgainIsYoungAgain) {
  Evicted evicted;
  PagePool pool(2);
  pool.set_observer(&evicted);
  const std::vector<PageId> pages = take(pool, 2);
  for (PageId page : pages)
    pool.publish(page);
  for (PageId page : pages)
    pool.release(page);

  pool.add_owner(pages[0]);
  pool.release(pages[0]);
  (void)take(pool, 1);

  EXPECT_EQ(evicted.pages, (std::vector<PageId>{pages[1]}));
}

TEST(PagePool, NeverEvictsAnOwnedPage) {
  Evicted evicted;
  PagePool pool(2);
  pool.set_observer(&evicted);
  const std::vector<PageId> pages = take(pool, 2);
  for (PageId page : pages)
    pool.publish(page);
  pool.release(pages[1]);
  std::vector<PageId> out;

  EXPECT_FALSE(pool.take(2, out));
  EXPECT_TRUE(pool.take(1, out));

  EXPECT_EQ(evicted.pages, (std::vector<PageId>{pages[1]}));
  EXPECT_EQ(pool.state(pages[0]), PageState::kShared);
}

TEST(PagePool, GenerationChangesWithEachUse) {
  PagePool pool(1);
  const PageId page = take(pool, 1)[0];
  const uint32_t first = pool.generation(page);

  pool.release(page);
  (void)take(pool, 1);

  EXPECT_NE(pool.generation(page), first);
}

TEST(PagePool, DropCachedLeavesOwnedPages) {
  PagePool pool(3);
  const std::vector<PageId> pages = take(pool, 3);
  for (PageId page : pages)
    pool.publish(page);
  pool.release(pages[0]);
  pool.release(pages[2]);

  pool.drop_cached();

  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_owned(), 1);
  EXPECT_EQ(pool.state(pages[1]), PageState::kShared);
}

TEST(PagePool, CountsStayRightUnderRandomUse) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    Rng rng(seed);
    const int64_t n = 1 + rng.next_below(12);
    PagePool pool(n);
    std::vector<PageId> owned;  // one entry for each owner
    for (int i = 0; i < 200; ++i) {
      const uint32_t what = rng.next_below(4);
      const PageId some =
          owned.empty() ? kNoPage : owned[rng.next_below(static_cast<uint32_t>(owned.size()))];
      if (what == 0) {
        const int64_t count = rng.next_below(4);
        const int64_t available = pool.num_available();
        EXPECT_EQ(pool.take(count, owned), count <= available);
      } else if (some != kNoPage && what == 1) {
        pool.release(some);
        owned.erase(std::ranges::find(owned, some));
      } else if (some != kNoPage && what == 2 && pool.state(some) == PageState::kPrivate) {
        pool.publish(some);
      } else if (some != kNoPage && what == 3 && pool.state(some) == PageState::kShared) {
        pool.add_owner(some);
        owned.push_back(some);
      }
      const Status status = pool.check_invariants();
      ASSERT_TRUE(status.ok()) << status.message();
      for (PageId page : owned)
        ASSERT_EQ(pool.owners(page), std::ranges::count(owned, page));
    }
  }
}

TEST(PagePoolDeathTest, RefusesToReleaseAFreePage) {
  PagePool pool(1);

  EXPECT_DEATH(pool.release(0), "no owner");
  EXPECT_DEATH(pool.release(1), "no page 1");
  EXPECT_DEATH(pool.release(-1), "no page -1");
}

}  // namespace
}  // namespace fathom
