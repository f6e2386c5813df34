// Trees of drafts by the model's own draft layer. As a chain's (nextn_proposer.h), but each pass of
// propose() takes the best K guesses of every sequence, and each row gives K more. The rows of the
// draft layer lie one behind the other behind the last known token, level by level, and attend to
// their own paths. The passes of all levels are one step, a chain, which chooses nodes as the tree
// here does when it hears of the guesses.
#pragma once

#include <array>
#include <vector>

#include "fathom/runtime/draft/nextn_proposer.h"
#include "fathom/runtime/draft/tree/draft_tree.h"

namespace fathom {

/// Guesses are the most probable tokens, of greedy requests and of others.
class NextnTreeProposer : public NextnPasses {
 public:
  /// `shape` is a tree's.
  explicit NextnTreeProposer(const DraftShape& shape);

  DraftReach reach(int64_t drafts) const override;

  Status propose(Executor& executor, std::span<const DraftPlace> places) override;

  Status follow(Executor& executor,
                std::span<const ComputedTokens> computed,
                const View& hidden) override;

  void reserve(const StepShape& shape) override;

 private:
  // The first guesses behind a sequence, best first.
  struct First {
    int32_t hidden_row = 0;
    size_t count = 0;
    std::array<TokenLogprob, kMostBranches> best;
  };

  struct Growing {
    explicit Growing(const DraftShape& shape);

    bool grows() const { return levels > 0 && !tree.frontier().empty(); }

    // The frontier gets rows of the cache.
    void lay_rows();

    // Rows of hidden states that the frontier reads.
    void add_states(std::vector<int32_t>& rows) const;

    const DraftPlace* place = nullptr;
    DraftTree tree;
    int64_t levels = 0;            // that it still grows by
    int32_t first_row = 0;         // of hidden states: what its first level came from
    std::vector<int32_t> row_of;   // of each node, among the tree's rows of the cache; -1: none yet
    std::vector<int32_t> parents;  // of the tree's rows of the cache
    std::vector<int32_t> tokens;   // of its part of a step
    int32_t level_row = 0;         // where its last level begins among those rows
    int32_t pass_row = 0;          // and in the pass over it
  };

  bool is_whole(const Growing& growing) const {
    return std::ssize(growing.tree.frontier()) == shape_.branches;
  }

  void start(const DraftPlace& place, const First& first);
  Status grow(Executor& executor);
  int64_t levels_at_once(const Executor& executor) const;
  void add_to_step(Growing& growing);
  void add_guesses(Growing& growing, std::span<const SampleResult> level);

  std::span<Growing> trees() { return std::span(trees_).first(num_trees_); }

  std::span<const Growing> trees() const { return std::span(trees_).first(num_trees_); }

  DraftShape shape_;
  SamplingParams best_;
  FirstGuesses<First> first_;
  std::vector<Growing> trees_;
  size_t num_trees_ = 0;
};

}  // namespace fathom
