#include "fathom/runtime/kv/page_pool.h"

namespace fathom {

PagePool::PagePool(int64_t num_pages) : pages_(static_cast<size_t>(num_pages)) {
  FATHOM_CHECK(num_pages >= 0 && num_pages <= INT32_MAX, "page numbers are 32 bits wide");
  free_.reserve(pages_.size());
  for (int64_t i = num_pages; i-- > 0;)
    free_.push_back(static_cast<PageId>(i));
}

const PagePool::Page& PagePool::at(PageId page) const {
  FATHOM_CHECK(page >= 0 && page < num_pages(), str_cat("no page ", page));
  return pages_[static_cast<size_t>(page)];
}

PagePool::Page& PagePool::at(PageId page) {
  return const_cast<Page&>(static_cast<const PagePool*>(this)->at(page));
}

bool PagePool::take(int64_t count, std::vector<PageId>& out) {
  FATHOM_CHECK(count >= 0, "negative number of pages");
  if (count > num_available()) return false;
  while (num_free() < count)
    evict_oldest();
  for (int64_t i = 0; i < count; ++i) {
    const PageId id = free_.back();
    free_.pop_back();
    Page& page = at(id);
    page.state = PageState::kPrivate;
    page.owners = 1;
    ++page.generation;
    out.push_back(id);
  }
  num_private_ += count;
  return true;
}

void PagePool::add_owner(PageId id) {
  Page& page = at(id);
  FATHOM_CHECK(page.state == PageState::kShared, "only a shared page takes another owner");
  if (page.owners == 0) unlink(id);
  ++page.owners;
}

void PagePool::release(PageId id) {
  Page& page = at(id);
  FATHOM_CHECK(page.owners > 0, str_cat("page ", id, " has no owner to release it"));
  if (--page.owners > 0) return;
  if (page.state == PageState::kShared) return link_newest(id);
  page.state = PageState::kFree;
  --num_private_;
  free_.push_back(id);
}

void PagePool::publish(PageId id) {
  Page& page = at(id);
  FATHOM_CHECK(page.state == PageState::kPrivate, "only a private page can be published");
  page.state = PageState::kShared;
  --num_private_;
}

void PagePool::drop_cached() {
  while (num_cached_ > 0)
    evict_oldest();
}

void PagePool::link_newest(PageId id) {
  Page& page = at(id);
  page.older = newest_;
  page.newer = kNoPage;
  (newest_ == kNoPage ? oldest_ : at(newest_).newer) = id;
  newest_ = id;
  ++num_cached_;
}

void PagePool::unlink(PageId id) {
  Page& page = at(id);
  (page.older == kNoPage ? oldest_ : at(page.older).newer) = page.newer;
  (page.newer == kNoPage ? newest_ : at(page.newer).older) = page.older;
  page.older = page.newer = kNoPage;
  --num_cached_;
}

void PagePool::evict_oldest() {
  const PageId id = oldest_;
  if (observer_ != nullptr) observer_->on_evict(id);
  unlink(id);
  at(id).state = PageState::kFree;
  free_.push_back(id);
  ++num_evictions_;
}

Status PagePool::check_invariants() const {
  int64_t free_pages = 0;
  int64_t private_pages = 0;
  int64_t cached_pages = 0;
  for (PageId id = 0; id < num_pages(); ++id) {
    const Page& page = at(id);
    const bool right = page.state == PageState::kFree      ? page.owners == 0
                       : page.state == PageState::kPrivate ? page.owners == 1
                                                           : page.owners >= 0;
    if (!right) {
      return internal_error(str_cat("page ", id, " in state ", static_cast<int>(page.state),
                                    " has ", page.owners, " owners"));
    }
    free_pages += page.state == PageState::kFree;
    private_pages += page.state == PageState::kPrivate;
    cached_pages += page.state == PageState::kShared && page.owners == 0;
  }
  int64_t listed = 0;
  for (PageId id = oldest_; id != kNoPage && listed <= num_pages(); id = at(id).newer) {
    if (at(id).state != PageState::kShared || at(id).owners != 0) {
      return internal_error(str_cat("page ", id, " is in the eviction list but in use"));
    }
    ++listed;
  }
  if (free_pages != num_free() || private_pages != num_private_ || cached_pages != num_cached_ ||
      listed != num_cached_) {
    return internal_error(str_cat("page counts differ: free ", free_pages, "/", num_free(),
                                  ", private ", private_pages, "/", num_private_, ", cached ",
                                  cached_pages, "/", num_cached_, ", listed ", listed));
  }
  return {};
}

}  // namespace fathom
