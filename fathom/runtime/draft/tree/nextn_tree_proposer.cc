#include "fathom/runtime/draft/tree/nextn_tree_proposer.h"

#include <algorithm>

namespace fathom {

NextnTreeProposer::NextnTreeProposer(const DraftShape& shape)
    : NextnPasses(shape.tokens + 1, PadPasses::kWhereCaptured),
      shape_(shape),
      best_(greedy_sampling()) {
  FATHOM_CHECK(shape.is_tree() && shape.branches <= kMostBranches, "a tree has several branches");
  best_.top_logprobs = static_cast<int>(shape.branches);
}

// All levels but the last have rows of the draft layer.
DraftReach NextnTreeProposer::reach(int64_t drafts) const {
  const int64_t own = (shape_.tokens - 1) * shape_.branches - 1;
  return {.depth = std::min(shape_.tokens, drafts), .rows = std::max(drafts, own)};
}

Status NextnTreeProposer::follow(Executor& executor,
                                 std::span<const ComputedTokens> computed,
                                 const View& hidden) {
  first_.clear();
  return run_behind(executor, computed, hidden, &best_,
                    [&](RequestId id, int32_t row, const SampleResult& guess) {
                      if (!guess.finite) return;
                      First& first = first_[id];
                      first.hidden_row = row;
                      first.count = guess.top_logprobs.size();
                      std::ranges::copy(guess.top_logprobs, first.best.begin());
                      // The most probable of those that a constraint allows may be none of them.
                      const auto best = std::span(first.best).first(first.count);
                      if (std::ranges::count(best, guess.token, &TokenLogprob::token) == 0)
                        best.back() = {guess.token, guess.logprob};
                    });
}

Status NextnTreeProposer::propose(Executor& executor, std::span<const DraftPlace> places) {
  num_trees_ = 0;
  while (trees_.size() < places.size())
    trees_.emplace_back().tree = DraftTree(shape_.branches);
  for (const DraftPlace& place : places) {
    const auto first = first_.find(place.sequence->id);
    if (first != first_.end()) start(place, first->second);
  }
  first_.clear();  // their states go with the next pass
  const auto grows = [](const Growing& g) { return g.levels > 0 && !g.tree.frontier().empty(); };
  while (std::any_of(trees_.begin(), trees_.begin() + static_cast<int64_t>(num_trees_), grows))
    FATHOM_TRY(grow(executor));
  for (size_t i = 0; i < num_trees_; ++i) {
    Sequence& s = *trees_[i].place->sequence;
    trees_[i].tree.keep(std::min(shape_.drafts(), trees_[i].place->most), s.drafts,
                        s.draft_parents);
  }
  return {};
}

// Behind the last known token there is room for `most` rows, and the last known one has the first
// row: it is the row of the first guess. A level takes as many rows as a tree has branches.
void NextnTreeProposer::start(const DraftPlace& place, const First& first) {
  Growing& g = trees_[num_trees_++];
  g.place = &place;
  g.levels = std::min(shape_.tokens - 1, (place.most + 1) / shape_.branches);
  g.first_row = first.hidden_row;
  g.tree.start(std::span(first.best).first(first.count));
  g.row_of.clear();
  g.parents.clear();
  g.tokens.clear();
}

// A level more for each tree that grows, in one pass.
Status NextnTreeProposer::grow(Executor& executor) {
  begin_pass();
  for (size_t i = 0; i < num_trees_; ++i) {
    Growing& g = trees_[i];
    if (g.levels > 0) add_to_pass(g);
  }
  FATHOM_ASSIGN(const std::span<const SampleResult> results, run_passes(executor));
  for (size_t i = 0; i < num_trees_; ++i) {
    Growing& g = trees_[i];
    if (g.levels == 0) continue;
    --g.levels;
    auto row = static_cast<size_t>(g.pass_row);
    for (const int32_t node : g.tree.frontier()) {
      const SampleResult& result = results[row++];
      if (result.finite) g.tree.add_children(node, result.top_logprobs);
    }
    g.tree.grow();
  }
  return {};
}

void NextnTreeProposer::add_to_pass(Growing& g) {
  const Sequence& s = *g.place->sequence;
  const auto rows = static_cast<int32_t>(g.parents.size());
  // From a row of the level before to its row of hidden states.
  const int32_t shift = g.pass_row - (rows - static_cast<int32_t>(g.tokens.size()));
  g.pass_row = static_cast<int32_t>(rows_read_.size());
  g.tokens.clear();
  g.row_of.resize(static_cast<size_t>(g.tree.num_nodes()), -1);
  for (const int32_t node : g.tree.frontier()) {
    const int32_t parent = g.tree.parent(node);
    const int32_t parent_row = parent < 0 ? -1 : g.row_of[static_cast<size_t>(parent)];
    g.row_of[static_cast<size_t>(node)] = static_cast<int32_t>(g.parents.size());
    g.parents.push_back(parent_row);
    g.tokens.push_back(g.tree.token(node));
    rows_read_.push_back(parent < 0 ? g.first_row : parent_row + shift);
    samples_.push_back({.params = &best_, .position = g.place->row.position});
  }
  if (g.tokens.empty()) return;
  decode_.push_back({.tokens = g.tokens,
                     .cached = s.num_tokens() - 1 + rows,
                     .pages = s.cache.blocks(),
                     .slot = s.cache.slot(),
                     .logits = LogitRows::kAll,
                     .parents = g.parents});
}

}  // namespace fathom
