// Pages of the KV cache as numbers: who owns them, which may be shared, which may be reused.
//
//            take                       publish
//   free ------------> private ----------------------> shared
//    ^                    | last owner gone               | owners 1..n, then 0: cached
//    +--------------------+                               |
//    +----------------------------------------------------+ evicted (oldest cached page first)
//
// A private page has exactly one owner and may be written. A shared page is known to the prefix
// cache and is never written again. A shared page without owners is "cached": its content is kept
// until somebody needs the room. All three transitions go through this class.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

/// Index of a page in the pool; what block tables hold and kernels read.
using PageId = int32_t;
inline constexpr PageId kNoPage = -1;

enum class PageState : uint8_t { kFree, kPrivate, kShared };

/// Told when a cached page is about to lose its content, so that nobody finds it any more.
class PageObserver {
 public:
  virtual ~PageObserver() = default;
  virtual void on_evict(PageId page) = 0;
};

/// Not thread-safe: the engine thread owns it. Allocates at construction and never afterwards.
class PagePool {
 public:
  /// num_pages >= 0.
  explicit PagePool(int64_t num_pages);

  /// At most one; it must outlive the pool or be removed with null.
  void set_observer(PageObserver* observer) { observer_ = observer; }

  /// Appends `count` private pages to `out`, evicting cached pages, oldest first, when no free ones
  /// are left. All or nothing: false, with nothing changed, when fewer are available.
  [[nodiscard]] bool take(int64_t count, std::vector<PageId>& out);

  /// One more owner of a shared page (a prefix hit). A cached page leaves the eviction list.
  void add_owner(PageId page);

  /// One owner less. A private page becomes free; the last owner of a shared page leaves it cached,
  /// as the newest of the eviction list.
  void release(PageId page);

  /// private -> shared; the owner stays.
  void publish(PageId page);

  /// Frees every cached page, telling the observer. Owned pages stay.
  void drop_cached();

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }

  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  /// Shared pages without an owner.
  int64_t num_cached() const { return num_cached_; }

  /// What take() can hand out: free and cached pages.
  int64_t num_available() const { return num_free() + num_cached_; }

  int64_t num_owned() const { return num_pages() - num_available(); }

  int64_t num_private() const { return num_private_; }

  /// Cached pages that lost their content to make room, since the start.
  int64_t num_evictions() const { return num_evictions_; }

  PageState state(PageId page) const { return at(page).state; }

  int32_t owners(PageId page) const { return at(page).owners; }

  /// Rises each time the page is handed out: a page number with its generation names one content.
  uint32_t generation(PageId page) const { return at(page).generation; }

  /// Recounts everything from the pages; Internal, naming the first contradiction. For tests.
  Status check_invariants() const;

 private:
  struct Page {
    PageState state = PageState::kFree;
    int32_t owners = 0;
    uint32_t generation = 0;
    PageId older = kNoPage;  // neighbours in the eviction list, while cached
    PageId newer = kNoPage;
  };

  const Page& at(PageId page) const;
  Page& at(PageId page);
  void link_newest(PageId page);
  void unlink(PageId page);
  void evict_oldest();

  std::vector<Page> pages_;
  std::vector<PageId> free_;  // a stack: the page freed last is warm in the cache
  PageId oldest_ = kNoPage;
  PageId newest_ = kNoPage;
  int64_t num_cached_ = 0;
  int64_t num_private_ = 0;
  int64_t num_evictions_ = 0;
  PageObserver* observer_ = nullptr;
};

}  // namespace fathom
