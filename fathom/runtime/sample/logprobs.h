// Log-probabilities of tokens, for the rows that ask for them: log-softmax of the raw logits in
// float64, on the host.
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

/// True if the row's raw logits are needed on the host, as they were before penalties and biases.
inline bool asks_for_logprobs(const SampleRow& row) {
  return row.params->top_logprobs >= 0;
}

/// Keeps the best tokens of `max_rows` rows, so that steps take no memory.
class Logprobs {
 public:
  explicit Logprobs(int64_t max_rows);

  /// Adds to the results of rows that ask and are finite; the others are left alone. raw[i]: the
  /// num_ids raw logits of row i in host memory; null where row i does not ask.
  void add(ThreadPool& pool,
           std::span<const float* const> raw,
           int64_t num_ids,
           std::span<const SampleRow> rows,
           std::span<SampleResult> results);

 private:
  std::vector<TokenLogprob> top_;  // [max_rows, kMaxTopLogprobs]
};

}  // namespace fathom
