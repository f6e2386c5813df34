// SequenceCache: what one sequence owns of the cache, and the pools that it is taken from.
//
//   grow(n)      room for n tokens, all or nothing
//   truncate(n)  gives back what tokens from n on had: rejected drafts
//   snapshot()   a second copy of rings and states, as they are now; resume() goes back to it
//
// Pages of groups that grow need no copies: they are shared by the prefix cache once complete, and
// a truncated row is overwritten. Rings and states change in place, so who wants them later copies
// them: the copies are named here (SlotCopy) and made by the executor before the next step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "fathom/models/cache_layout.h"
#include "fathom/runtime/kv/page_pool.h"

namespace fathom {

/// Rings and states of slot `from` go to slot `to`, in every group that does not grow.
struct SlotCopy {
  PageId from = kNoPage;
  PageId to = kNoPage;

  friend bool operator==(const SlotCopy&, const SlotCopy&) = default;
};

/// Who owns which block, and which slot. Neither knows what lies there.
struct CachePools {
  CachePools(int64_t tokens_per_block, int64_t most_slack, int64_t num_blocks, int64_t num_slots)
      : layout{.block_tokens = tokens_per_block, .groups = {}},
        block_tokens(tokens_per_block),
        slack(most_slack),
        blocks(num_blocks),
        slots(num_slots) {}

  CachePools(const CacheLayout& of, int64_t num_blocks, int64_t num_slots)
      : layout(of),
        block_tokens(of.block_tokens),
        slack(of.slack()),
        blocks(num_blocks),
        slots(of.has_slots() ? num_slots : 0) {}

  int64_t blocks_for(int64_t tokens) const { return ceil_div(tokens, block_tokens); }

  /// Sequences need a slot each.
  bool has_slots() const { return slots.num_pages() > 0; }

  const CacheLayout layout;
  const int64_t block_tokens;
  const int64_t slack;  ///< CacheLayout::slack
  PagePool blocks;
  PagePool slots;
};

/// The blocks of a sequence in the order of its tokens, and its slot. Empty at first. All pages go
/// back by release_all(); a table that is destroyed gives nothing back.
class SequenceCache {
 public:
  std::span<const PageId> blocks() const { return blocks_; }

  PageId slot() const { return slot_; }

  bool empty() const { return blocks_.empty() && slot_ == kNoPage; }

  /// Room for that many blocks without another allocation.
  void reserve_blocks(int64_t count) { blocks_.reserve(static_cast<size_t>(count)); }

  /// Blocks that are missing for `tokens` tokens.
  int64_t missing(const CachePools& pools, int64_t tokens) const {
    return std::max<int64_t>(pools.blocks_for(tokens) - static_cast<int64_t>(blocks_.size()), 0);
  }

  /// Whether grow(tokens) would succeed.
  bool has_room(const CachePools& pools, int64_t tokens) const;

  /// Takes blocks until `tokens` tokens fit, and a slot if the model wants one. False, with nothing
  /// changed, if the pools lack them.
  [[nodiscard]] bool grow(CachePools& pools, int64_t tokens);

  /// True if a sequence of `length` tokens can go back to `tokens` without a snapshot: its rings
  /// still hold what came before.
  static bool can_truncate(const CachePools& pools, int64_t length, int64_t tokens) {
    return length - tokens <= pools.slack;
  }

  /// Gives back the blocks behind those of the first `tokens` tokens. The caller has asked
  /// can_truncate(); the tokens that go were never offered to the prefix cache.
  void truncate(CachePools& pools, int64_t tokens);

  /// Appends a shared block found in the prefix cache; the caller has added the owner.
  void append_shared(PageId block) { blocks_.push_back(block); }

  /// Gives everything back, the last block first: of two cached blocks of one prefix the longer one
  /// is evicted earlier, so that what is left can still be found.
  void release_all(CachePools& pools);

  /// Takes another slot for a copy of this one as it is when the step before is done; nothing where
  /// there are no slots or no free one. The copy belongs to the caller.
  std::pair<bool, SlotCopy> snapshot(CachePools& pools) const;

  /// The copy that brings the slot back to what `from` holds.
  SlotCopy resume(PageId from) const { return {.from = from, .to = slot_}; }

 private:
  std::vector<PageId> blocks_;
  PageId slot_ = kNoPage;
};

}  // namespace fathom
