// TreeRows: where the tokens of a tree of drafts stand, and where their rows lie (SequenceStep).
//
// Rows of a tree lie one behind the other, in the order of its tokens, while a token stands behind
// the one that it follows. A group of the cache with a row for every r tokens has, behind those
// that were complete before the tree, a row for each token that completes one on its own path:
//
//   place of a token   7 | 8  9  10 11 12        two paths, 7 8 10 12 and 7 9 11, behind root 7
//   its position       7 | 8  8  9  9  10
//   r = 2              3 |       4  5            tokens 10 and 11 complete a row each, of positions
//                                                8 and 9; 12 sees that of 10
//   r = 1              7 | 8  9  10 11 12
//
// A row that all others follow, the root, counts as lying before the tree, and so does the row that
// it completes (kernels/attn/tree_keys.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/kernels/attn/tree_keys.h"

namespace fathom {

/// Rows of a group that the tokens of a tree complete and see.
struct GroupTree {
  int64_t begin = 0;            ///< rows that lie before the tree
  std::vector<int64_t> places;  ///< of each token: of the row that it completes; -1: none
  std::vector<uint64_t> masks;  ///< of each token: rows from `begin` on that it sees
};

/// Reused from tree to tree.
class TreeRows {
 public:
  TreeRows();

  /// A tree behind `before` tokens; `parents` as in SequenceStep. At most kMostTreeRows rows behind
  /// a root.
  void set(int64_t before, std::span<const int32_t> parents);

  /// A chain of `count` tokens.
  void set_chain(int64_t before, int64_t count);

  /// Rows that all others follow: 1 or 0.
  static int64_t num_roots(std::span<const int32_t> parents);

  int64_t size() const { return static_cast<int64_t>(masks_.size()); }

  /// Places of tokens that lie before the tree, its root included.
  int64_t begin() const { return begin_; }

  /// The tokens that token `row` sees, itself included.
  TreeToken token(int64_t row) const { return {begin_, masks_[static_cast<size_t>(row)]}; }

  int64_t position(int64_t row) const { return num_seen(token(row)) - 1; }

  int64_t place(int64_t row) const { return before_ + row; }

  /// Its rows in a group with a row for every so many tokens.
  void pool(int64_t tokens_per_row, GroupTree& out) const;

 private:
  int64_t before_ = 0;
  int64_t begin_ = 0;
  std::vector<int32_t> parents_;
  std::vector<uint64_t> masks_;
};

}  // namespace fathom
