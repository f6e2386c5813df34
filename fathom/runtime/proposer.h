// Proposer: guesses how a sequence goes on, so that one step may verify several tokens of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/runtime/request.h"

namespace fathom {

/// Asked before each step for every sequence that decodes and whose rows do not depend on each
/// other through penalties. A guess never changes what comes out: the sampler draws a token at each
/// place from the logits there, and the guess saves a step where it was that token.
class Proposer {
 public:
  virtual ~Proposer() = default;

  /// Appends at most `most` tokens that may follow those of the sequence.
  virtual void propose(const Sequence& sequence, int64_t most, std::vector<int32_t>& out) = 0;
};

}  // namespace fathom
