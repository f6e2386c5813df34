#include "fathom/runtime/kv/sequence_cache.h"

#include "fathom/base/check.h"

namespace fathom {

bool SequenceCache::has_room(const CachePools& pools, int64_t tokens) const {
  const bool slot = slot_ != kNoPage || !pools.has_slots() || pools.slots.num_available() > 0;
  return slot && missing(pools, tokens) <= pools.blocks.num_available();
}

bool SequenceCache::grow(CachePools& pools, int64_t tokens) {
  if (!has_room(pools, tokens)) return false;
  if (slot_ == kNoPage && pools.has_slots()) {
    std::vector<PageId> taken;
    const bool has = pools.slots.take(1, taken);
    FATHOM_CHECK(has, "a slot was counted before");
    slot_ = taken[0];
  }
  const bool taken = pools.blocks.take(missing(pools, tokens), blocks_);
  FATHOM_CHECK(taken, "the blocks were counted before");
  return true;
}

void SequenceCache::truncate(CachePools& pools, int64_t tokens) {
  const auto kept = static_cast<size_t>(pools.blocks_for(tokens));
  while (blocks_.size() > kept) {
    pools.blocks.release(blocks_.back());
    blocks_.pop_back();
  }
}

void SequenceCache::release_all(CachePools& pools) {
  truncate(pools, 0);
  if (slot_ == kNoPage) return;
  pools.slots.release(slot_);
  slot_ = kNoPage;
}

std::pair<bool, SlotCopy> SequenceCache::snapshot(CachePools& pools) const {
  if (slot_ == kNoPage) return {false, {}};
  std::vector<PageId> taken;
  if (!pools.slots.take(1, taken)) return {false, {}};
  return {true, {.from = slot_, .to = taken[0]}};
}

}  // namespace fathom
