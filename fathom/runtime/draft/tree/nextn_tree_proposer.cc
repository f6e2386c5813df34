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
                      First& first = first_.add(id);
                      first.hidden_row = row;
                      first.count = guess.top_logprobs.size();
                      std::ranges::copy(guess.top_logprobs, first.best.begin());
                      // The most probable of those that a constraint allows may be none of them.
                      const auto best = std::span(first.best).first(first.count);
                      if (std::ranges::count(best, guess.token, &TokenLogprob::token) == 0)
                        best.back() = {guess.token, guess.logprob};
                    });
}

NextnTreeProposer::Growing::Growing(const DraftShape& shape) : tree(shape) {
  row_of.reserve(static_cast<size_t>(shape.candidates()));
  parents.reserve(static_cast<size_t>(shape.tokens * shape.branches));
  tokens.reserve(static_cast<size_t>(shape.branches));
}

void NextnTreeProposer::reserve(const StepShape& shape) {
  NextnPasses::reserve(shape);
  first_.reserve(shape.max_num_seqs);
  trees_.reserve(static_cast<size_t>(shape.max_num_seqs));
  while (std::ssize(trees_) < shape.max_num_seqs)
    trees_.emplace_back(shape_);
}

Status NextnTreeProposer::propose(Executor& executor, std::span<const DraftPlace> places) {
  num_trees_ = 0;
  while (trees_.size() < places.size())
    trees_.emplace_back(shape_);
  for (const DraftPlace& place : places) {
    if (const First* first = first_.find(place.sequence->id)) start(place, *first);
  }
  first_.clear();  // their states go with the next pass
  while (std::ranges::any_of(trees(), &Growing::grows))
    FATHOM_TRY(grow(executor));
  for (Growing& g : trees()) {
    Sequence& s = *g.place->sequence;
    g.tree.keep(std::min(shape_.drafts(), g.place->most), s.drafts, s.draft_parents);
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
  g.level_row = 0;
  g.tree.start(std::span(first.best).first(first.count));
  g.row_of.clear();
  g.parents.clear();
}

// As many levels more for each tree that grows as all of them have room for, in one step. A chain
// has K rows in each level: its trees begin with K nodes, and each finite row gives K guesses
// (most_levels()), so that levels are whole until one is empty.
Status NextnTreeProposer::grow(Executor& executor) {
  begin_pass();
  const int64_t levels = levels_at_once(executor);
  for (Growing& g : trees()) {
    if (g.grows()) add_to_step(g);
  }
  const size_t nodes = rows_read_.size();
  samples_.resize(nodes * static_cast<size_t>(levels), {.params = &best_});
  FATHOM_ASSIGN(const std::span<const SampleResult> results, run_passes(executor, levels));
  for (Growing& g : trees()) {
    if (!g.grows()) continue;
    for (int64_t level = 0; level < levels; ++level) {
      if (level > 0) g.lay_rows();
      const size_t first = static_cast<size_t>(level) * nodes + static_cast<size_t>(g.pass_row);
      add_guesses(g, results.subspan(first));
      FATHOM_DCHECK(levels == 1 || g.tree.frontier().empty() || is_whole(g),
                    "a level of a chain has rows of all its nodes");
    }
    g.levels -= levels;
  }
  return {};
}

int64_t NextnTreeProposer::levels_at_once(const Executor& executor) const {
  int64_t levels = executor.most_levels(shape_.branches);
  for (const Growing& g : trees()) {
    if (!g.grows()) continue;
    levels = std::min(levels, is_whole(g) ? g.levels : 1);
  }
  return levels;
}

void NextnTreeProposer::Growing::lay_rows() {
  level_row = static_cast<int32_t>(parents.size());
  row_of.resize(static_cast<size_t>(tree.num_nodes()), -1);
  for (const int32_t node : tree.frontier()) {
    const int32_t parent = tree.parent(node);
    row_of[static_cast<size_t>(node)] = static_cast<int32_t>(parents.size());
    parents.push_back(parent < 0 ? -1 : row_of[static_cast<size_t>(parent)]);
  }
}

void NextnTreeProposer::Growing::add_states(std::vector<int32_t>& rows) const {
  for (const int32_t node : tree.frontier()) {
    const int32_t parent = tree.parent(node);
    const bool first = parent < 0;
    rows.push_back(first ? first_row : row_of[static_cast<size_t>(parent)] - level_row + pass_row);
  }
}

void NextnTreeProposer::add_to_step(Growing& g) {
  const Sequence& s = *g.place->sequence;
  const auto begin = static_cast<int32_t>(rows_read_.size());
  g.add_states(rows_read_);
  g.pass_row = begin;
  g.lay_rows();
  g.tokens.clear();
  for (const int32_t node : g.tree.frontier()) {
    g.tokens.push_back(g.tree.token(node));
    paths_.push_back(g.tree.logprob(node));
  }
  decode_.push_back({.tokens = g.tokens,
                     .cached = s.num_tokens() - 1 + g.level_row,
                     .pages = s.cache.blocks(),
                     .slot = s.cache.slot(),
                     .logits = LogitRows::kAll,
                     .parents = g.parents});
}

void NextnTreeProposer::add_guesses(Growing& g, std::span<const SampleResult> level) {
  size_t row = 0;
  for (const int32_t node : g.tree.frontier()) {
    const SampleResult& result = level[row++];
    if (result.finite) g.tree.add_children(node, result.top_logprobs);
  }
  g.tree.grow();
}

}  // namespace fathom
