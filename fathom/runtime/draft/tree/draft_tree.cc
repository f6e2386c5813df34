#include "fathom/runtime/draft/tree/draft_tree.h"

#include <algorithm>
#include <numeric>

#include "fathom/runtime/draft/proposer.h"

namespace fathom {

int64_t DraftShape::drafts() const {
  if (!is_tree()) return tokens;
  return width > 0 ? width : std::min(tokens * branches, kMostTreeDrafts);
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
  const auto better = [&](int32_t a, int32_t b) {
    const float of_a = nodes_[static_cast<size_t>(a)].logprob;
    const float of_b = nodes_[static_cast<size_t>(b)].logprob;
    return of_a != of_b ? of_a > of_b : a < b;
  };
  if (most < chosen.size()) {
    std::ranges::nth_element(chosen, chosen.begin() + static_cast<int64_t>(most), better);
    chosen.resize(most);
  }
  std::ranges::sort(chosen);
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
