// Proposer: guesses how sequences go on, so that one step may verify several tokens of each.
//
//   propose()   before a step: drafts of the sequences that decode in it
//   follow()    behind a step, for those that keep rows of their own: what was computed in it
//   forget()    a sequence has ended
//
// A guess never changes what comes out: the sampler draws a token at each place from the logits
// there, and the guess saves a step where it was that token.
#pragma once

#include <cstdint>
#include <span>

#include "fathom/base/status.h"
#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/runtime/executor/executor.h"
#include "fathom/runtime/request.h"

namespace fathom {

/// Drafts one behind the other in a step at most (`--speculative-tokens`).
inline constexpr int64_t kMostDrafts = 16;

/// Drafts of a tree in a step at most (`--speculative-width`). The last known token is its root.
inline constexpr int64_t kMostTreeDrafts = kMostTreeRows;

/// A sequence that decodes in the next step. Its cache has room for `most` tokens behind the last
/// known one.
struct DraftPlace {
  Sequence* sequence = nullptr;
  int64_t most = 0;  ///< rows, at least 1, and never more than DraftReach::rows
  SampleRow row;     ///< what its next token is drawn with; the positions of others follow
};

/// Tokens [begin, begin + tokens.size()) of a sequence that were computed and are right.
struct ComputedTokens {
  const Sequence* sequence = nullptr;
  int64_t begin = 0;
  std::span<const int32_t> hidden_rows;  ///< of each in the states of the step, ascending
  bool prefill = false;                  ///< in the prefill range of the step
  int64_t count = 0;                     ///< of its tokens in the step, wrong drafts included
  int64_t room = 0;                      ///< rows from `begin` on that are its own to write
  /// The token after each of them. The last is new, unless the step ended within a prompt.
  std::span<const int32_t> next;
  bool goes_on = false;  ///< drafts behind the last token may be asked for
  SampleRow row;         ///< if it goes on: what the token after that is drawn with
};

/// How far a proposer goes.
struct DraftReach {
  int64_t depth = 0;  ///< drafts one behind the other at most
  int64_t rows = 0;   ///< of the cache behind the last known token, that its passes and a step take
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  /// With steps that verify `drafts` of a sequence at most.
  virtual DraftReach reach(int64_t drafts) const { return {.depth = drafts, .rows = drafts}; }

  /// Takes what its passes need of the host, so that no step allocates. The shape is that of the
  /// executor.
  virtual void reserve(const StepShape& shape) { (void)shape; }

  /// Appends tokens that may follow to the drafts of each sequence, no more than a step verifies
  /// nor than there is room for; for a tree, their parents too. Between steps. Errors: those of the
  /// executor.
  virtual Status propose(Executor& executor, std::span<const DraftPlace> places) = 0;

  /// Whether follow() wants to be called, with hidden states.
  virtual bool follows() const { return false; }

  /// What a step computed, in the order of the step, before anything of it is given back. `hidden`:
  /// StepResults::hidden. Errors: those of the executor.
  virtual Status follow(Executor& executor,
                        std::span<const ComputedTokens> computed,
                        const View& hidden) {
    (void)executor, (void)computed, (void)hidden;
    return {};
  }

  /// The sequence has ended.
  virtual void forget(RequestId id) { (void)id; }
};

}  // namespace fathom
