#include "fathom/runtime/kv/prefix_cache.h"

#include <algorithm>
#include <cstring>

#include "fathom/os/sha256.h"

namespace fathom {
namespace {

enum class Tag : uint8_t { kPurpose = 1, kModel, kLayout, kCompute, kSalt, kParent, kTokens };

void put_u64(std::byte* to, uint64_t value) {
  for (int i = 0; i < 8; ++i)
    to[i] = static_cast<std::byte>(value >> (8 * i));
}

void add_field(Sha256& hash, Tag tag, std::span<const std::byte> bytes) {
  std::byte head[9];
  head[0] = static_cast<std::byte>(tag);
  put_u64(head + 1, bytes.size());
  hash.update(head);
  hash.update(bytes);
}

void add_field(Sha256& hash, Tag tag, std::string_view text) {
  add_field(hash, tag, std::as_bytes(std::span(text)));
}

constexpr uint64_t kRootBit = uint64_t{1} << 63;

PrefixKey first_128_bits(const Sha256Digest& digest) {
  PrefixKey key;
  std::memcpy(key.data(), digest.data(), sizeof key);
  return key;
}

}  // namespace

PrefixCache::PrefixCache(CachePools& pools, PrefixDomain domain)
    : pools_(pools),
      domain_(std::move(domain)),
      named_(static_cast<size_t>(pools.blocks.num_pages())),
      tokens_(static_cast<size_t>(pools.blocks.num_pages() * pools.block_tokens)),
      block_of_slot_(static_cast<size_t>(pools.slots.num_pages()), kNoPage) {
  block_of_key_.reserve(named_.size());
  pools_.blocks.set_observer(&blocks_);
  pools_.slots.set_observer(&slots_);
}

PrefixCache::~PrefixCache() {
  pools_.blocks.set_observer(nullptr);
  pools_.slots.set_observer(nullptr);
}

std::span<int32_t> PrefixCache::tokens_of(PageId block) {
  const auto size = static_cast<size_t>(pools_.block_tokens);
  return std::span(tokens_).subspan(static_cast<size_t>(block) * size, size);
}

PrefixKey PrefixCache::root(std::string_view salt) const {
  Sha256 hash;
  add_field(hash, Tag::kPurpose, std::string_view("fathom prefix 2"));
  add_field(hash, Tag::kModel, domain_.model_fingerprint);
  add_field(hash, Tag::kLayout, domain_.layout);
  add_field(hash, Tag::kCompute, domain_.compute);
  add_field(hash, Tag::kSalt, salt);
  PrefixKey key = first_128_bits(hash.finish());
  key[1] |= kRootBit;
  return key;
}

PrefixKey PrefixCache::extend(const PrefixKey& parent, std::span<const int32_t> tokens) const {
  FATHOM_CHECK(static_cast<int64_t>(tokens.size()) == pools_.block_tokens + domain_.following,
               "only complete blocks have keys");
  Sha256 hash;
  add_field(hash, Tag::kPurpose, std::string_view("page"));
  add_field(hash, Tag::kParent, std::as_bytes(std::span(parent)));
  add_field(hash, Tag::kTokens, std::as_bytes(tokens));
  PrefixKey key = first_128_bits(hash.finish());
  key[1] &= ~kRootBit;
  return key;
}

const PrefixKey& PrefixCache::key_of(const PrefixKey& root,
                                     std::span<const int32_t> tokens,
                                     int64_t index,
                                     std::vector<PrefixKey>& keys) const {
  const auto block = static_cast<size_t>(pools_.block_tokens);
  const auto named = block + static_cast<size_t>(domain_.following);
  while (static_cast<int64_t>(keys.size()) <= index) {
    const PrefixKey parent = keys.empty() ? root : keys.back();
    keys.push_back(extend(parent, tokens.subspan(keys.size() * block, named)));
  }
  return keys[static_cast<size_t>(index)];
}

PrefixMatch PrefixCache::match(const PrefixKey& root,
                               std::span<const int32_t> tokens,
                               int64_t max_tokens,
                               SequenceCache& cache,
                               std::vector<PrefixKey>& keys) {
  FATHOM_CHECK(cache.empty(), "a prefix starts at the first token");
  const int64_t size = pools_.block_tokens;
  const int64_t limit =
      std::min(max_tokens, static_cast<int64_t>(tokens.size()) - domain_.following);
  PrefixKey parent = root;
  PrefixMatch found;
  int64_t usable = 0;  // tokens up to the last block that a hit may end with
  int64_t covered = 0;
  for (; covered + size <= limit; covered += size) {
    const PrefixKey key = key_of(root, tokens, covered / size, keys);
    const auto known = block_of_key_.find(key);
    if (known == block_of_key_.end()) break;
    const PageId block = known->second;
    if (at(block).parent != parent ||
        !std::ranges::equal(tokens_of(block), tokens.subspan(static_cast<size_t>(covered),
                                                             static_cast<size_t>(size)))) {
      ++stats_.collisions;
      break;
    }
    pools_.blocks.add_owner(block);
    cache.append_shared(block);
    if (!pools_.has_slots() || at(block).snapshot != kNoPage) {
      usable = covered + size;
      found.snapshot = at(block).snapshot;
    }
    parent = key;
  }
  cache.truncate(pools_, usable);
  if (found.snapshot != kNoPage) pools_.slots.add_owner(found.snapshot);
  found.tokens = usable;
  return found;
}

bool PrefixCache::publish(const PrefixKey& key,
                          const PrefixKey& parent,
                          std::span<const int32_t> tokens,
                          PageId block) {
  FATHOM_CHECK(static_cast<int64_t>(tokens.size()) == pools_.block_tokens,
               "only complete blocks are shared");
  if (!block_of_key_.try_emplace(key, block).second) return false;
  at(block) = {.key = key, .parent = parent};
  std::ranges::copy(tokens, tokens_of(block).begin());
  pools_.blocks.publish(block);
  if (observer_ != nullptr) observer_->on_stored(key, parent, tokens);
  return true;
}

bool PrefixCache::wants_snapshot(const PrefixKey& key) const {
  const auto known = block_of_key_.find(key);
  return known != block_of_key_.end() &&
         named_[static_cast<size_t>(known->second)].snapshot == kNoPage;
}

void PrefixCache::add_snapshot(const PrefixKey& key, PageId slot) {
  const PageId block = block_of_key_.at(key);
  at(block).snapshot = slot;
  block_of_slot_[static_cast<size_t>(slot)] = block;
  pools_.slots.publish(slot);
  pools_.slots.release(slot);  // nobody's, and found by its block
}

void PrefixCache::clear() {
  // Blocks that requests own stay: then each of the others is told by itself.
  const bool all = pools_.blocks.num_cached() == size();
  PrefixObserver* const observer = observer_;
  if (all) observer_ = nullptr;
  pools_.blocks.drop_cached();
  observer_ = observer;
  if (all && observer != nullptr) observer->on_cleared();
}

void PrefixCache::forget_block(PageId block) {
  Named& named = at(block);
  const auto known = block_of_key_.find(named.key);
  FATHOM_CHECK(known != block_of_key_.end() && known->second == block,
               "an evicted block is in the prefix cache");
  block_of_key_.erase(known);
  if (observer_ != nullptr) observer_->on_removed(named.key);
  // Its snapshot is found by nobody any more, and goes when its turn comes.
  if (named.snapshot != kNoPage) block_of_slot_[static_cast<size_t>(named.snapshot)] = kNoPage;
  named.snapshot = kNoPage;
}

void PrefixCache::forget_snapshot(PageId slot) {
  PageId& block = block_of_slot_[static_cast<size_t>(slot)];
  if (block != kNoPage) at(block).snapshot = kNoPage;
  block = kNoPage;
}

}  // namespace fathom
