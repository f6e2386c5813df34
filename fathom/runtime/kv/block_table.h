// BlockTable: the pages of one request, in the order of its tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/runtime/kv/page_pool.h"

namespace fathom {

/// Token position p of a request lies in page pages[p / block_size] at offset p % block_size.
class BlockTable {
 public:
  explicit BlockTable(int block_size) : block_size_(block_size) {}

  /// Pages that hold `tokens` tokens.
  static int64_t pages_for(int64_t tokens, int block_size) {
    return ceil_div<int64_t>(tokens, block_size);
  }

  int block_size() const { return block_size_; }

  /// Tokens that fit into the pages so far.
  int64_t capacity() const { return static_cast<int64_t>(pages_.size()) * block_size_; }

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()); }

  std::span<const PageId> pages() const { return pages_; }

  /// Room for that many tokens without another allocation.
  void reserve_tokens(int64_t tokens) {
    pages_.reserve(static_cast<size_t>(pages_for(tokens, block_size_)));
  }

  /// The row of the cache where the token at `position` lies: page * block_size + offset.
  int64_t slot(int64_t position) const {
    const int64_t page = pages_[static_cast<size_t>(position / block_size_)];
    return page * block_size_ + position % block_size_;
  }

  /// Takes pages until `tokens` tokens fit. False, with nothing changed, if the pool lacks them.
  [[nodiscard]] bool grow(PagePool& pool, int64_t tokens) {
    return pool.take(std::max<int64_t>(pages_for(tokens, block_size_) - num_pages(), 0), pages_);
  }

  /// Appends a shared page found in the prefix cache; the caller has added the owner.
  void append_shared(PageId page) { pages_.push_back(page); }

  /// Gives all pages back, the last first: of two cached pages of one prefix the longer one is
  /// evicted earlier, so that what is left can still be found.
  void release_all(PagePool& pool) {
    while (!pages_.empty()) {
      pool.release(pages_.back());
      pages_.pop_back();
    }
  }

 private:
  int block_size_;
  std::vector<PageId> pages_;
};

}  // namespace fathom
