#include "fathom/runtime/draft/tree/draft_tree.h"

#include <algorithm>
#include <numeric>

#include "fathom/runtime/draft/proposer.h"

namespace fathom {

int64_t DraftShape::drafts() const {
  if (!is_tree()) return tokens;
  return width > 0 ? width : std::min(tokens * branches, kMostTreeDrafts);
}

DraftTree::DraftTree(const DraftShape& shape) : branches_(static_cast<size_t>(shape.branches)) {
  const auto nodes = static_cast<size_t>(shape.candidates());
  nodes_.reserve(nodes);
  kept_.reserve(nodes);
  frontier_.reserve(branches_ * branches_);
}

void DraftTree::start(std::span<const TokenLogprob> best) {
  nodes_.clear();
  level_ = 0;
  add(-1, best);
  grow();
}

void DraftTree::add_children(int32_t node, std::span<const TokenLogprob> best) {
  add(node, best);
}

void DraftTree::add(int32_t parent, std::span<const TokenLogprob> best) {
  const float before = parent < 0 ? 0.0f : nodes_[static_cast<size_t>(parent)].logprob;
  for (const TokenLogprob& guess : best.first(std::min(best.size(), branches_)))
    nodes_.push_back({guess.token, parent, before + guess.logprob});
}

void DraftTree::grow() {
  choose(level_, branches_, frontier_);
  level_ = nodes_.size();
}

// The best `most` nodes from `first` on, in order of their numbers.
void DraftTree::choose(size_t first, size_t most, std::vector<int32_t>& chosen) const {
  chosen.resize(nodes_.size() - first);
  std::iota(chosen.begin(), chosen.end(), static_cast<int32_t>(first));
  chosen.resize(
      best_in_order(std::span(chosen), most, [&](int32_t node) { return logprob(node); }));
}

void DraftTree::keep(int64_t most, std::vector<int32_t>& tokens, std::vector<int32_t>& parents) {
  choose(0, static_cast<size_t>(most), kept_);
  const auto first = static_cast<int32_t>(tokens.size());
  for (const int32_t node : kept_) {
    tokens.push_back(token(node));
    const int32_t before = parent(node);
    const auto at = std::ranges::lower_bound(kept_, before) - kept_.begin();
    parents.push_back(before < 0 ? -1 : first + static_cast<int32_t>(at));
  }
}

}  // namespace fathom
