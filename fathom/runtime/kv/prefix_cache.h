// Prefix cache: finds complete pages whose content was computed before for the same tokens.
//
// A page is named by a chain of SHA-256 digests, cut to 128 bits:
//
//   root      = H(tag "fathom prefix 1", model fingerprint, layout version, KV format, block size,
//                 compute, salt)
//   key(i)    = H(tag "page", key(i-1), token ids of page i)
//
// Every field goes in as a one-byte tag, its length as 8 bytes and its bytes, so that no two lists
// of fields give the same message. What shapes the content of a page is in the root; requests with
// different salts never share. A hit also compares the token ids of the page and its parent's key,
// so a collision of 128 bits gives a miss and never a wrong page.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fathom/formats/format.h"
#include "fathom/runtime/kv/block_table.h"
#include "fathom/runtime/kv/page_pool.h"

namespace fathom {

/// 128 bits of a chained digest.
using PrefixKey = std::array<uint64_t, 2>;

/// All that shapes the content of a page besides the tokens.
struct PrefixDomain {
  std::string model_fingerprint;  ///< digest of weights and configuration
  int layout_version = 1;         ///< of the bytes within a page
  Format kv_format = Format::kBf16;
  int block_size = 64;
  std::string compute;  ///< activation format and attention form, such as "bf16/by-phase"
};

struct PrefixCacheStats {
  int64_t queried_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t collisions = 0;  ///< keys that agreed while tokens or parent did not
};

/// Knows shared pages by key. Not thread-safe. Memory is bounded by the pool: one entry for each
/// shared page, with its token ids.
class PrefixCache final : public PageObserver {
 public:
  /// Becomes the pool's observer. The pool must outlive the cache.
  PrefixCache(PagePool& pool, PrefixDomain domain);
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Where the chain of a request begins. Equal salts share, others do not.
  PrefixKey root(std::string_view salt) const;

  /// The key of the page with these block_size token ids behind `parent`.
  PrefixKey extend(const PrefixKey& parent, std::span<const int32_t> tokens) const;

  /// Appends to an empty table the longest known chain of complete pages that covers at most
  /// `max_tokens` of `tokens`, owned by the caller from now on. `keys` remembers the keys of the
  /// first pages of these tokens, so that asking again hashes nothing twice. Returns the number of
  /// tokens covered, a multiple of the block size.
  int64_t match(const PrefixKey& root,
                std::span<const int32_t> tokens,
                int64_t max_tokens,
                BlockTable& table,
                std::vector<PrefixKey>& keys);

  /// The key of page `index` of these tokens; extends `keys` as far as needed.
  const PrefixKey& key_of(const PrefixKey& root,
                          std::span<const int32_t> tokens,
                          int64_t index,
                          std::vector<PrefixKey>& keys) const;

  /// Counts a look-up that was made use of.
  void count(int64_t queried_tokens, int64_t hit_tokens) {
    stats_.queried_tokens += queried_tokens;
    stats_.hit_tokens += hit_tokens;
  }

  /// Makes a complete private page known under `key` and shared. When the key is known already the
  /// page stays private: the first content wins. True if it was published.
  bool publish(const PrefixKey& key,
               const PrefixKey& parent,
               std::span<const int32_t> tokens,
               PageId page);

  /// Forgets a cached page (called by the pool).
  void on_evict(PageId page) override;

  const PrefixCacheStats& stats() const { return stats_; }

  int64_t size() const { return static_cast<int64_t>(page_of_key_.size()); }

 private:
  struct KeyHash {
    size_t operator()(const PrefixKey& key) const { return static_cast<size_t>(key[0]); }
  };

  // What is known of a shared page; its token ids are row `page` of tokens_.
  struct Named {
    PrefixKey key{};
    PrefixKey parent{};
  };

  std::span<int32_t> tokens_of(PageId page);

  PagePool& pool_;
  PrefixDomain domain_;
  std::unordered_map<PrefixKey, PageId, KeyHash> page_of_key_;
  std::vector<Named> named_;     // [num_pages], valid for shared pages
  std::vector<int32_t> tokens_;  // [num_pages, block_size]
  PrefixCacheStats stats_;
};

}  // namespace fathom
