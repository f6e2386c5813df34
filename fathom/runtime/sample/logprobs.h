// Log-probabilities of tokens, for the rows that ask for them: log-softmax of the raw logits. From
// logits in host memory, in float64, or from what the kernel top_logprobs found where they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/os/thread_pool.h"
#include "fathom/runtime/request.h"
#include "fathom/runtime/sample/sample_batch.h"

namespace fathom {

struct SampleResult {
  int32_t token = -1;
  /// False: the row held NaN or +inf, or nothing but -inf. No token is drawn then.
  bool finite = false;
  float logprob = 0.0f;  ///< of the token, log-softmax of the raw logits, if asked for
  int32_t rank = 0;  ///< of a token that was scored (SampleRow::scored), 1 for the most probable
  std::span<const TokenLogprob> top_logprobs;  ///< best first; valid until the next call
};

inline bool asks_for_logprobs(const SampleRow& row) {
  return row.params->top_logprobs >= 0;
}

/// True if the row's raw logits are needed, as they were before penalties and biases: to say more
/// than what the best tokens are, and what the one is that is drawn.
inline bool needs_raw_logits(const SampleRow& row) {
  const SamplingParams& p = *row.params;
  return asks_for_logprobs(row) && (row.scored >= 0 || p.has_penalties() || !p.logit_bias.empty());
}

/// True if the best tokens of the row's raw logits are enough, and the logit of the token drawn,
/// which masks and bans leave as it was.
inline bool needs_best_tokens(const SampleRow& row) {
  return asks_for_logprobs(row) && !needs_raw_logits(row);
}

/// What top_logprobs found of the rows of a step, in host memory.
struct BestTokens {
  /// Numbers of four bytes for each row: `count` ids and log-probabilities, and the largest logit.
  static constexpr int64_t numbers(int64_t count) { return 2 * count + 1; }

  size_t count = 0;                   ///< of each row
  std::span<const int32_t> ids{};     // [R, count]
  std::span<const float> logprobs{};  // [R, count]
  std::span<const float> largest{};   // [R]
};

/// Keeps the best tokens of `max_rows` rows, so that steps take no memory.
class Logprobs {
 public:
  explicit Logprobs(int64_t max_rows);

  /// Adds to the results of rows that ask and are finite; the others are left alone. raw[i]: the
  /// num_ids raw logits of row i in host memory; null for a row that is left alone as well.
  void add(ThreadPool& pool,
           std::span<const float* const> raw,
           int64_t num_ids,
           std::span<const SampleRow> rows,
           std::span<SampleResult> results);

  /// Adds to the results of rows for which the best tokens are enough. True if the token is one of
  /// these; otherwise set_logprob() is called with its logit.
  bool add_best(const BestTokens& best, size_t i, const SampleRow& row, SampleResult& result);

  /// The log-probability of a token of row i that is none of the best.
  static void set_logprob(const BestTokens& best, size_t i, float logit, SampleResult& result);

 private:
  std::vector<TokenLogprob> top_;  // [max_rows, kMaxTopLogprobs]
};

}  // namespace fathom
