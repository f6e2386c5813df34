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
//
// Passes have few shapes, for GPUs that capture them. Those of propose() are one step, a chain
// (Step::chain). Behind a step that only decodes follow() takes as many tokens of each sequence as
// the step had: behind those that came out stand copies of the last one, whose rows are as much
// guesses as those of propose(), and lie where the step had wrong drafts.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "fathom/runtime/draft/proposer.h"

namespace fathom {

/// Whether the passes behind a step are padded to the shape of the step.
enum class PadPasses : uint8_t { kWhereCaptured, kAlways };

/// What follow() guessed first behind each sequence, until the next pass. Those of sequences that
/// ended meanwhile are asked for by nobody: no other request has their ids.
template <class Guess>
class FirstGuesses {
 public:
  void reserve(int64_t count) { guesses_.reserve(static_cast<size_t>(count)); }

  void clear() {
    guesses_.clear();
    next_ = 0;
  }

  Guess& add(RequestId id) { return guesses_.emplace_back(id, Guess{}).second; }

  /// Null without one. Looks on behind what was found last: a step's sequences are asked for in
  /// the order in which they were added, but for some.
  const Guess* find(RequestId id) {
    for (size_t tried = 0; tried < guesses_.size(); ++tried) {
      if (next_ == guesses_.size()) next_ = 0;
      const auto& [of, guess] = guesses_[next_++];
      if (of == id) return &guess;
    }
    return nullptr;
  }

 private:
  std::vector<std::pair<RequestId, Guess>> guesses_;
  size_t next_ = 0;
};

/// Passes of the draft layer, of chains and of trees.
class NextnPasses : public Proposer {
 public:
  bool follows() const override { return true; }

  void reserve(const StepShape& shape) override;

 protected:
  /// Of a sequence that decodes at most `most_right` tokens of a step are right.
  NextnPasses(int64_t most_right, PadPasses pad) : most_right_(most_right), pad_(pad) {}

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

  /// That pass, which reads rows of hidden_, or a chain of so many: of levels if there are paths_.
  Result<std::span<const SampleResult>> run_passes(Executor& executor, int64_t chain = 1);

  View hidden_;  ///< of the pass before
  std::vector<SequenceStep> decode_;
  std::vector<int32_t> rows_read_;
  std::vector<SampleRow> samples_;
  std::vector<float> paths_;  ///< Step::node_paths

 private:
  int64_t padded_tokens(const Executor& executor, std::span<const ComputedTokens> computed) const;
  void add_computed(const ComputedTokens& c, int64_t padded);

  const int64_t most_right_;
  const PadPasses pad_;
  std::vector<SequenceStep> prefill_;
  std::vector<int32_t> padded_;
};

/// Drafts are drawn as their tokens will be: with the same parameters, and the random number of the
/// same place. Greedy requests get the most probable drafts.
class NextnProposer final : public NextnPasses {
 public:
  explicit NextnProposer(PadPasses pad = PadPasses::kWhereCaptured);

  Status propose(Executor& executor, std::span<const DraftPlace> places) override;

  Status follow(Executor& executor,
                std::span<const ComputedTokens> computed,
                const View& hidden) override;

  void reserve(const StepShape& shape) override;

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
  void extend(Chain& chain, size_t i, std::span<const SampleResult> results) const;

  FirstGuesses<Draft> first_;
  std::vector<Chain> chains_;
};

}  // namespace fathom
