// Which keys of its request a token of a tree sees: all that lie before the tree, and those of the
// tree's rows that its mask names. Rows of a tree lie one behind the other, in any order.
//
//   place   0 ............ begin-1 | begin   begin+1  ......  begin+63
//           seen by every token    | bit 0   bit 1    ......  bit 63   of a token's mask
//
// A row that all rows of a tree follow, its root, counts as lying before it. A chain is a tree
// whose masks have all bits up to a token's own.
//
// Keys that a token sees are counted in the order of their places: key i of them is that of the
// token decoded alone, behind its own path.
#pragma once

#include <cstdint>

#include "fathom/base/host_device.h"
#include "fathom/base/status.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// Rows of a tree, its root not counted: the bits of a mask.
inline constexpr int64_t kMostTreeRows = 64;

/// A token of a tree.
struct TreeToken {
  int64_t begin = 0;  ///< keys before the tree
  uint64_t mask = 0;  ///< of the tree's rows, its own among them unless it is the root
};

// Static functions: files compiled for different instruction sets must not share one copy of code.

/// Bits of a mask that are set.
[[maybe_unused]] FATHOM_HD static inline int count_bits(uint64_t mask) {
#if defined(__CUDA_ARCH__)
  return __popcll(mask);
#else
  return __builtin_popcountll(mask);
#endif
}

/// Keys that the token sees.
[[maybe_unused]] FATHOM_HD static inline int64_t num_seen(const TreeToken& t) {
  return t.begin + count_bits(t.mask);
}

/// The token that sees so many keys, those that its mask names among them.
[[maybe_unused]] FATHOM_HD static inline TreeToken tree_token_of(int64_t seen, int64_t mask) {
  const auto bits = static_cast<uint64_t>(mask);
  return {seen - count_bits(bits), bits};
}

/// Whether it sees the key at `place`.
[[maybe_unused]] FATHOM_HD static inline bool sees_place(const TreeToken& t, int64_t place) {
  if (place < t.begin) return true;
  return place - t.begin < kMostTreeRows && (t.mask >> (place - t.begin) & 1) != 0;
}

/// The place of key i of those that it sees, i < num_seen().
[[maybe_unused]] FATHOM_HD static inline int64_t place_of_seen(const TreeToken& t, int64_t i) {
  if (i < t.begin) return i;
  uint64_t left = t.mask;
  for (int64_t skip = i - t.begin; skip > 0; --skip)
    left &= left - 1;
  return t.begin + count_bits(~left & (left - 1));
}

/// How many keys it sees before `place`: which one of them the key there is, if it sees it.
[[maybe_unused]] FATHOM_HD static inline int64_t seen_before(const TreeToken& t, int64_t place) {
  const int64_t row = place - t.begin;
  if (row <= 0) return place;
  const uint64_t below = row < kMostTreeRows ? (uint64_t{1} << row) - 1 : ~uint64_t{0};
  return t.begin + count_bits(t.mask & below);
}

/// InvalidArgument unless tree_masks and tree_begins are both there or both absent, the begins [B]
/// lie within kv_lens [B] and at most 64 keys before them, and no mask names a row behind the last
/// key. masks [B,Q]. Passes what there is no data of.
Status check_trees(const View& masks, const View& begins, const View& kv_lens);

/// The first of these: both or neither.
Status check_tree_operands(const View& masks, const View& begins);

}  // namespace fathom
