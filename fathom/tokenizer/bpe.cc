#include "fathom/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "fathom/base/check.h"

namespace fathom {
namespace {

// Up to this many bytes a scan over all pairs for each merge beats a heap.
constexpr size_t kShortPiece = 48;

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

size_t Bpe::home_slot(uint64_t key) const {
  // Fibonacci hashing of both halves: the multiplication carries low bits up, never down.
  const uint64_t mixed = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
  return (mixed ^ mixed << 21) >> shift_;
}

Status Bpe::insert(const BpeMerge& merge, uint32_t rank) {
  // Chance does not fill so many slots in a row of a half empty table; a file made for it is
  // refused, so that loading and encoding stay linear.
  constexpr int kMaxProbes = 512;
  const uint64_t key = key_of(merge.left, merge.right);
  size_t slot = home_slot(key);
  for (int i = 0; i < kMaxProbes; ++i, slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].key != kFreeKey && slots_[slot].key != key) continue;
    slots_[slot] = {key, rank, merge.result};
    return {};
  }
  return corrupt(str_cat("merge ", rank, " collides with too many others"));
}

Bpe::Merge Bpe::find(int32_t left, int32_t right) const {
  const uint64_t key = key_of(left, right);
  size_t slot = home_slot(key);
  while (slots_[slot].key != key) {
    if (slots_[slot].key == kFreeKey) return {};
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slots_[slot];
}

Result<Bpe> Bpe::make(const ByteTokens& byte_tokens, const std::vector<BpeMerge>& merges) {
  FATHOM_CHECK(static_cast<int64_t>(merges.size()) <= kMaxMerges);
  Bpe bpe;
  bpe.byte_tokens_ = byte_tokens;
  const size_t num_slots = std::bit_ceil(merges.size() * 2 + 2);
  bpe.slots_.resize(num_slots);
  bpe.shift_ = 64 - std::countr_zero(num_slots);
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    FATHOM_TRY(bpe.insert(merges[rank], rank));
  }
  return bpe;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids, Scratch& scratch) const {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids, scratch);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  // Entry i of ranks and results is about the pair tokens[i], tokens[i + 1]. Filled below, not
  // here: most pieces are shorter than the arrays by far.
  std::array<int32_t, kShortPiece> tokens;
  std::array<uint32_t, kShortPiece> ranks;
  std::array<int32_t, kShortPiece> results;
  const auto note = [&](size_t i) {
    const Merge merge = find(tokens[i], tokens[i + 1]);
    ranks[i] = merge.rank;
    results[i] = merge.result;
  };
  size_t n = 0;
  for (const char c : piece) {
    const int32_t token = byte_tokens_[static_cast<unsigned char>(c)];
    if (token != kNoToken) tokens[n++] = token;
  }
  for (size_t i = 0; i + 1 < n; ++i)
    note(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    tokens[best] = results[best];
    for (size_t i = best + 1; i + 1 < n; ++i)
      tokens[i] = tokens[i + 1];
    for (size_t i = best + 1; i + 2 < n; ++i) {
      ranks[i] = ranks[i + 1];
      results[i] = results[i + 1];
    }
    --n;
    if (best > 0) note(best - 1);
    if (best + 1 < n) note(best);
  }
  ids.insert(ids.end(), tokens.data(), tokens.data() + n);
}

void Bpe::encode_long(std::string_view piece, std::vector<int32_t>& ids, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  for (const char c : piece) {
    const int32_t token = byte_tokens_[static_cast<unsigned char>(c)];
    if (token == kNoToken) continue;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({token, index - 1, index + 1, kNoRank});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  const auto entry = [](uint32_t rank, int32_t index) {
    return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(index);
  };
  // Notes the merge of a symbol with its next one; entries of the heap with another rank are stale.
  const auto note = [&](int32_t index) {
    auto& symbol = symbols[index];
    symbol.rank = symbol.next < 0 ? kNoRank : find(symbol.token, symbols[symbol.next].token).rank;
    return symbol.rank != kNoRank;
  };
  for (int32_t i = 0; i < static_cast<int32_t>(symbols.size()); ++i) {
    if (note(i)) heap.push_back(entry(symbols[i].rank, i));
  }
  const auto add = [&](int32_t index) {
    if (!note(index)) return;
    heap.push_back(entry(symbols[index].rank, index));
    std::push_heap(heap.begin(), heap.end(), std::greater<>{});
  };

  std::make_heap(heap.begin(), heap.end(), std::greater<>{});
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    const auto index = static_cast<int32_t>(heap.back() & 0xFFFFFFFFu);
    heap.pop_back();
    auto& left = symbols[index];
    if (left.rank != rank) continue;
    auto& right = symbols[left.next];
    left.token = find(left.token, right.token).result;
    left.next = right.next;
    right.rank = kNoRank;  // joined: its own entries are stale
    if (left.next >= 0) symbols[left.next].previous = index;
    add(index);
    if (left.previous >= 0) add(left.previous);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next)
    ids.push_back(symbols[i].token);
}

}  // namespace fathom
