#include "fathom/runtime/kv/prefix_cache.h"

#include <algorithm>
#include <cstring>

#include "fathom/os/sha256.h"

namespace fathom {
namespace {

enum class Tag : uint8_t {
  kPurpose = 1,
  kModel,
  kLayout,
  kFormat,
  kBlock,
  kCompute,
  kSalt,
  kParent,
  kTokens
};

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

void add_field(Sha256& hash, Tag tag, int64_t number) {
  std::byte bytes[8];
  put_u64(bytes, static_cast<uint64_t>(number));
  add_field(hash, tag, bytes);
}

PrefixKey first_128_bits(const Sha256Digest& digest) {
  PrefixKey key;
  std::memcpy(key.data(), digest.data(), sizeof key);
  return key;
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, PrefixDomain domain)
    : pool_(pool),
      domain_(std::move(domain)),
      named_(static_cast<size_t>(pool.num_pages())),
      tokens_(static_cast<size_t>(pool.num_pages() * domain_.block_size)) {
  FATHOM_CHECK(domain_.block_size > 0, "a page holds at least one token");
  page_of_key_.reserve(named_.size());
  pool_.set_observer(this);
}

PrefixCache::~PrefixCache() {
  pool_.set_observer(nullptr);
}

std::span<int32_t> PrefixCache::tokens_of(PageId page) {
  const auto block = static_cast<size_t>(domain_.block_size);
  return std::span(tokens_).subspan(static_cast<size_t>(page) * block, block);
}

PrefixKey PrefixCache::root(std::string_view salt) const {
  Sha256 hash;
  add_field(hash, Tag::kPurpose, std::string_view("fathom prefix 1"));
  add_field(hash, Tag::kModel, domain_.model_fingerprint);
  add_field(hash, Tag::kLayout, int64_t{domain_.layout_version});
  add_field(hash, Tag::kFormat, format_name(domain_.kv_format));
  add_field(hash, Tag::kBlock, int64_t{domain_.block_size});
  add_field(hash, Tag::kCompute, domain_.compute);
  add_field(hash, Tag::kSalt, salt);
  return first_128_bits(hash.finish());
}

PrefixKey PrefixCache::extend(const PrefixKey& parent, std::span<const int32_t> tokens) const {
  FATHOM_CHECK(static_cast<int>(tokens.size()) == domain_.block_size,
               "only complete pages have keys");
  Sha256 hash;
  add_field(hash, Tag::kPurpose, std::string_view("page"));
  add_field(hash, Tag::kParent, std::as_bytes(std::span(parent)));
  add_field(hash, Tag::kTokens, std::as_bytes(tokens));
  return first_128_bits(hash.finish());
}

const PrefixKey& PrefixCache::key_of(const PrefixKey& root,
                                     std::span<const int32_t> tokens,
                                     int64_t index,
                                     std::vector<PrefixKey>& keys) const {
  const auto block = static_cast<size_t>(domain_.block_size);
  while (static_cast<int64_t>(keys.size()) <= index) {
    const PrefixKey parent = keys.empty() ? root : keys.back();
    keys.push_back(extend(parent, tokens.subspan(keys.size() * block, block)));
  }
  return keys[static_cast<size_t>(index)];
}

int64_t PrefixCache::match(const PrefixKey& root,
                           std::span<const int32_t> tokens,
                           int64_t max_tokens,
                           BlockTable& table,
                           std::vector<PrefixKey>& keys) {
  FATHOM_CHECK(table.num_pages() == 0, "a prefix starts at the first token");
  const int64_t block = domain_.block_size;
  const int64_t limit = std::min(max_tokens, static_cast<int64_t>(tokens.size()));
  PrefixKey parent = root;
  int64_t covered = 0;
  for (; covered + block <= limit; covered += block) {
    const PrefixKey key = key_of(root, tokens, covered / block, keys);
    const auto found = page_of_key_.find(key);
    if (found == page_of_key_.end()) break;
    const PageId page = found->second;
    if (named_[static_cast<size_t>(page)].parent != parent ||
        !std::ranges::equal(tokens_of(page), tokens.subspan(static_cast<size_t>(covered),
                                                            static_cast<size_t>(block)))) {
      ++stats_.collisions;
      break;
    }
    pool_.add_owner(page);
    table.append_shared(page);
    parent = key;
  }
  return covered;
}

bool PrefixCache::publish(const PrefixKey& key,
                          const PrefixKey& parent,
                          std::span<const int32_t> tokens,
                          PageId page) {
  FATHOM_CHECK(static_cast<int>(tokens.size()) == domain_.block_size,
               "only complete pages are shared");
  if (!page_of_key_.try_emplace(key, page).second) return false;
  named_[static_cast<size_t>(page)] = {key, parent};
  std::ranges::copy(tokens, tokens_of(page).begin());
  pool_.publish(page);
  return true;
}

void PrefixCache::on_evict(PageId page) {
  const auto found = page_of_key_.find(named_[static_cast<size_t>(page)].key);
  FATHOM_CHECK(found != page_of_key_.end() && found->second == page,
               "an evicted page is in the prefix cache");
  page_of_key_.erase(found);
}

}  // namespace fathom
