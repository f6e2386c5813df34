// What penalties need to know of a request: which tokens occurred, and how often they were
// generated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/runtime/sample/params.h"

namespace fathom {

/// The tokens of one request with their counts, each once, in order of first use: the lists of the
/// penalty kernel. Empty and without cost when the request has no penalties.
///
/// The repetition penalty concerns prompt and answer (count 0: only in the prompt), presence and
/// frequency the answer alone.
class TokenCounts {
 public:
  TokenCounts() = default;

  /// Ids of prompt and answer are in [0, vocab_size). Memory for max_tokens more tokens is taken
  /// now.
  TokenCounts(const SamplingParams& params,
              std::span<const int32_t> prompt,
              int64_t max_tokens,
              int64_t vocab_size);

  /// A token was generated.
  void add(int32_t token);

  std::span<const int32_t> tokens() const { return tokens_; }

  std::span<const int32_t> counts() const { return counts_; }

 private:
  int32_t& count_of(int32_t token);

  std::vector<int32_t> index_of_token_;  // [vocab], -1: did not occur; empty without penalties
  std::vector<int32_t> tokens_;
  std::vector<int32_t> counts_;
};

}  // namespace fathom
