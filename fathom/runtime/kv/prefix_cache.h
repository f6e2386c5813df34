// Prefix cache: finds complete blocks whose content was computed before for the same tokens.
//
// Models that keep rings or states besides need those too, as they were behind the last token of
// the prefix. So a block may have a snapshot, a slot that was copied when the block was complete; a
// hit of such a model ends at the last block that has one, and what follows is computed again.
//
// A block is named by a chain of SHA-256 digests, cut to 128 bits:
//
//   root      = H(tag "fathom prefix 2", model fingerprint, layout of the cache, compute, salt)
//   key(i)    = H(tag "page", key(i-1), token ids of page i, and of the token behind it where rows
//                 depend on it: those of a draft layer do)
//
// Every field goes in as a one-byte tag, its length as 8 bytes and its bytes, so that no two lists
// of fields give the same message. What shapes the content of a page is in the root; requests with
// different salts never share. A hit also compares the token ids of the page and its parent's key,
// so a collision of 128 bits gives a miss and never a wrong page. One of the bits tells roots from
// pages, so that who is told of a page knows whether it begins a prompt.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fathom/runtime/kv/page_pool.h"
#include "fathom/runtime/kv/sequence_cache.h"

namespace fathom {

/// 128 bits of a chained digest.
using PrefixKey = std::array<uint64_t, 2>;

/// Whether a key is where a chain begins, and of no block.
inline bool is_root(const PrefixKey& key) {
  return key[1] >> 63 != 0;
}

/// Told what the prefix cache can find, in order. Called on the engine thread; must be quick.
class PrefixObserver {
 public:
  virtual ~PrefixObserver() = default;

  /// The block of `key` can be found from now on. `parent` is the block before it, or a root.
  virtual void on_stored(const PrefixKey& key,
                         const PrefixKey& parent,
                         std::span<const int32_t> tokens) = 0;

  /// The block of `key` cannot be found any more; its memory has not been given to others yet.
  virtual void on_removed(const PrefixKey& key) = 0;

  /// No block can be found any more.
  virtual void on_cleared() = 0;
};

/// All that shapes the content of a page besides the tokens.
struct PrefixDomain {
  std::string model_fingerprint;  ///< digest of weights and configuration
  std::string layout;             ///< CacheLayout::fingerprint(): what the bytes of a page mean
  std::string compute;            ///< activation format and attention form, such as "bf16/by-phase"
  /// Tokens behind a page that its rows depend on: 1 with the rows of a draft layer, each of which
  /// is made with the token after it.
  int64_t following = 0;
};

struct PrefixCacheStats {
  int64_t queried_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t collisions = 0;  ///< keys that agreed while tokens or parent did not
};

/// A prefix that was found: its tokens, and the snapshot of rings and states behind them, owned by
/// the caller (kNoPage for models without).
struct PrefixMatch {
  int64_t tokens = 0;
  PageId snapshot = kNoPage;
};

/// Knows shared blocks by key. Not thread-safe. Memory is bounded by the pool: one entry for each
/// shared block, with its token ids.
class PrefixCache {
 public:
  /// Observes the pools, which must outlive the cache.
  PrefixCache(CachePools& pools, PrefixDomain domain);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Where the chain of a request begins. Equal salts share, others do not.
  PrefixKey root(std::string_view salt) const;

  /// The key of the block with these token ids behind `parent`; PrefixDomain::following more of
  /// them.
  PrefixKey extend(const PrefixKey& parent, std::span<const int32_t> tokens) const;

  /// Appends to an empty cache the longest known chain of complete blocks that covers at most
  /// `max_tokens` of `tokens` and ends with a snapshot if the model needs one; owned by the caller
  /// from now on. `keys` remembers the keys of the first blocks of these tokens, so that asking
  /// again hashes nothing twice. The tokens covered are a multiple of the block size.
  PrefixMatch match(const PrefixKey& root,
                    std::span<const int32_t> tokens,
                    int64_t max_tokens,
                    SequenceCache& cache,
                    std::vector<PrefixKey>& keys);

  /// The key of block `index` of these tokens, of which as many as it depends on are there; extends
  /// `keys` as far as needed.
  const PrefixKey& key_of(const PrefixKey& root,
                          std::span<const int32_t> tokens,
                          int64_t index,
                          std::vector<PrefixKey>& keys) const;

  /// Counts a look-up that was made use of.
  void count(int64_t queried_tokens, int64_t hit_tokens) {
    stats_.queried_tokens += queried_tokens;
    stats_.hit_tokens += hit_tokens;
  }

  /// Makes a complete private block known under `key` and shared. When the key is known already the
  /// block stays private: the first content wins. True if it was published.
  bool publish(const PrefixKey& key,
               const PrefixKey& parent,
               std::span<const int32_t> tokens,
               PageId block);

  /// True if the block of that key is known and has no snapshot yet.
  bool wants_snapshot(const PrefixKey& key) const;

  /// Gives the block of that key the private slot as its snapshot; the slot is the cache's from now
  /// on. The caller has asked wants_snapshot().
  void add_snapshot(const PrefixKey& key, PageId slot);

  /// At most one; it must outlive the cache or be removed with null.
  void set_observer(PrefixObserver* observer) { observer_ = observer; }

  /// Forgets all blocks that nobody owns.
  void clear();

  const PrefixCacheStats& stats() const { return stats_; }

  int64_t size() const { return static_cast<int64_t>(block_of_key_.size()); }

 private:
  struct KeyHash {
    size_t operator()(const PrefixKey& key) const { return static_cast<size_t>(key[0]); }
  };

  // What is known of a shared block; its token ids are row `block` of tokens_.
  struct Named {
    PrefixKey key{};
    PrefixKey parent{};
    PageId snapshot = kNoPage;
  };

  // Told of evictions by one of the two pools.
  struct Observer final : PageObserver {
    Observer(PrefixCache& owner, void (PrefixCache::*method)(PageId))
        : cache(owner), forget(method) {}

    void on_evict(PageId page) override { (cache.*forget)(page); }

    PrefixCache& cache;
    void (PrefixCache::*forget)(PageId);
  };

  void forget_block(PageId block);
  void forget_snapshot(PageId slot);

  Named& at(PageId block) { return named_[static_cast<size_t>(block)]; }

  std::span<int32_t> tokens_of(PageId block);

  CachePools& pools_;
  PrefixDomain domain_;
  Observer blocks_{*this, &PrefixCache::forget_block};
  Observer slots_{*this, &PrefixCache::forget_snapshot};
  std::unordered_map<PrefixKey, PageId, KeyHash> block_of_key_;
  std::vector<Named> named_;           // [num_blocks], valid for shared blocks
  std::vector<int32_t> tokens_;        // [num_blocks, block_tokens]
  std::vector<PageId> block_of_slot_;  // [num_slots], of snapshots
  PrefixCacheStats stats_;
  PrefixObserver* observer_ = nullptr;
};

}  // namespace fathom
