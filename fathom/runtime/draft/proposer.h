// Proposer: guesses how sequences go on, so that one step may verify several tokens of each.
//
//   propose()   before a step: drafts of the sequences that decode in it
//   forget()    a sequence has ended
//
// A guess never changes what comes out: the sampler draws a token at each place from the logits
// there, and the guess saves a step where it was that token.
#pragma once

#include <cstdint>
#include <span>

#include "fathom/base/status.h"
#include "fathom/runtime/executor/executor.h"
#include "fathom/runtime/request.h"

namespace fathom {

/// Drafts of a sequence in a step at most (`--speculative-tokens`).
inline constexpr int64_t kMostDrafts = 16;

/// A sequence that decodes in the next step. Its cache has room for `most` tokens behind the last
/// known one.
struct DraftPlace {
  Sequence* sequence = nullptr;
  int64_t most = 0;  ///< drafts, at least 1
  SampleRow row;     ///< what its next token is drawn with; the positions of others follow
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  /// Appends at most `most` tokens that may follow to the drafts of each sequence. Between steps.
  /// Errors: those of the executor.
  virtual Status propose(Executor& executor, std::span<const DraftPlace> places) = 0;

  /// The sequence has ended.
  virtual void forget(RequestId id) { (void)id; }
};

}  // namespace fathom
