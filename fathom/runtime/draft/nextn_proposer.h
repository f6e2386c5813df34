// Drafts by the model's own draft layer (multi-token prediction), run again on its own output.
//
//   main model   t0   t1   t2   t3            states h0 .. h3 behind the final norm, and t4 drawn
//   draft layer  row i takes t(i+1) and h(i), keeps keys of its own, and gives t(i+2):
//     follow()   (t1,h0) (t2,h1) (t3,h2) (t4,h3)   rows 0..3, for good; the last one gives d5
//     propose()                          (d5,g3)   row 4 takes the draft and the layer's own state,
//                                        (d6,g4)   gives d6, row 5 gives d7, ...
//
// Rows of propose() are guesses: follow() writes them again behind the step that verifies the
// drafts, with the states of the main model. So whatever is computed gets its row, chunk by chunk
// of a prompt as well, and pages that are shared have them.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "fathom/runtime/draft/proposer.h"

namespace fathom {

/// Passes of the draft layer, of chains and of trees.
class NextnPasses : public Proposer {
 public:
  bool follows() const override { return true; }

 protected:
  /// A guess behind a sequence that goes on: what was drawn there, and which row of hidden_ it came
  /// from.
  using OnGuess = std::function<void(RequestId id, int32_t hidden_row, const SampleResult& guess)>;

  /// The rows of what a step computed, for good. Guesses are drawn with `params`, or, if that is
  /// null, as their tokens will be.
  Status run_behind(Executor& executor,
                    std::span<const ComputedTokens> computed,
                    const View& hidden,
                    const SamplingParams* params,
                    const OnGuess& on_guess);

  /// Begins a pass over guesses: decode_, rows_read_ and samples_ are empty.
  void begin_pass();

  /// That pass, which reads rows of hidden_.
  Result<std::span<const SampleResult>> run_pass(Executor& executor);

  View hidden_;  ///< of the pass before
  std::vector<SequenceStep> decode_;
  std::vector<int32_t> rows_read_;
  std::vector<SampleRow> samples_;

 private:
  std::vector<SequenceStep> prefill_;
};

/// Drafts are drawn as their tokens will be: with the same parameters, and the random number of the
/// same place. Greedy requests get the most probable drafts.
class NextnProposer final : public NextnPasses {
 public:
  Status propose(Executor& executor, std::span<const DraftPlace> places) override;

  Status follow(Executor& executor,
                std::span<const ComputedTokens> computed,
                const View& hidden) override;

  void forget(RequestId id) override { first_.erase(id); }

 private:
  // A draft, and the state that it came from: a row of the pass before.
  struct Draft {
    int32_t token = -1;
    int32_t hidden_row = 0;
  };

  struct Chain {
    const DraftPlace* place = nullptr;
    Draft last;
  };

  Status go_on(Executor& executor);

  std::unordered_map<RequestId, Draft> first_;  // of sequences whose last pass was follow()'s
  std::vector<Chain> chains_;
};

}  // namespace fathom
