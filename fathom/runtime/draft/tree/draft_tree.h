// DraftTree: guesses at the tokens behind one sequence, as a tree that grows level by level, and
// the best of them.
//
//   start()        K guesses at the next token                             level 1
//   frontier()     the best K nodes of the last level, by joint probability
//   add_children() K guesses behind each of them, then grow()              level 2, 3, ...
//   keep()         the best nodes of all levels: what a step verifies
//
// The joint probability of a node is the product of the draft layer's probabilities along its path.
// A node is never better than the one it follows, so the best nodes are a tree again. It is the
// tree of the reference (EAGLE-2, arXiv 2406.16858, section 4; build_tree_kernel_efficient): nodes
// are kept in the order of their numbers, of equal ones the first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/kernels/spec/draft_tree/best_in_order.h"
#include "fathom/runtime/request.h"

namespace fathom {

/// How many guesses of a sequence there are.
struct DraftShape {
  int64_t tokens = 3;    ///< one behind the other at most: `--speculative-tokens`
  int64_t branches = 1;  ///< at one place, up to kMostBranches: `--speculative-topk`; 1: chains
  int64_t width = 0;     ///< of a tree in a step: `--speculative-width`; 0: tokens * branches

  bool is_tree() const { return branches > 1; }

  /// Nodes of a tree before the best ones are kept.
  int64_t candidates() const { return branches + (tokens - 1) * branches * branches; }

  /// Guesses that a step verifies at most.
  int64_t drafts() const;
};

/// Reused from step to step; takes memory only when it grows beyond its shape.
class DraftTree {
 public:
  explicit DraftTree(const DraftShape& shape);

  /// Begins again with guesses at the next token, best first; at most `branches`.
  void start(std::span<const TokenLogprob> best);

  /// Nodes that guesses are wanted behind, in order. Valid until grow().
  std::span<const int32_t> frontier() const { return frontier_; }

  /// Guesses behind a node of the frontier, in the order of the frontier; at most `branches`.
  void add_children(int32_t node, std::span<const TokenLogprob> best);

  /// The best nodes that were added since the last one are the new frontier.
  void grow();

  int64_t num_nodes() const { return static_cast<int64_t>(nodes_.size()); }

  int32_t token(int32_t node) const { return nodes_[static_cast<size_t>(node)].token; }

  /// The node that it follows; -1: the last known token.
  int32_t parent(int32_t node) const { return nodes_[static_cast<size_t>(node)].parent; }

  /// Of the path to it.
  float logprob(int32_t node) const { return nodes_[static_cast<size_t>(node)].logprob; }

  /// Appends the best `most` nodes: their tokens, and for each the kept one that it follows.
  void keep(int64_t most, std::vector<int32_t>& tokens, std::vector<int32_t>& parents);

 private:
  struct Node {
    int32_t token = -1;
    int32_t parent = -1;
    float logprob = 0.0f;  // of its path
  };

  void add(int32_t parent, std::span<const TokenLogprob> best);
  void choose(size_t first, size_t most, std::vector<int32_t>& chosen) const;

  size_t branches_;
  std::vector<Node> nodes_;
  size_t level_ = 0;  // the first node of the last level
  std::vector<int32_t> frontier_;
  std::vector<int32_t> kept_;
};

}  // namespace fathom
