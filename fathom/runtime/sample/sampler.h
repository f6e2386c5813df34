// The sampler: rows of logits to one token each.
//
//   raw logits -> finite? -> penalties, bias -> / temperature -> softmax (float32)
//              -> top-k, renormalise -> top-p, renormalise -> min-p -> one draw by inverse CDF
//
// Greedy rows take the argmax behind penalties and bias. The random number of a row comes from a
// Philox stream named by (seed, stream) at the position of the token, so a token depends neither on
// its neighbours nor on the step in which it is computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/runtime/request.h"
#include "fathom/runtime/sample/params.h"
#include "fathom/runtime/sample/penalties.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// What one row of logits is sampled with. Everything pointed to lives during the call.
struct SampleRow {
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;
  std::span<const int32_t> banned;  ///< tokens that may not come now, such as end tokens
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t position = 0;  ///< of the new token in its sequence
};

struct SampleResult {
  int32_t token = -1;
  /// False: the row held NaN or +inf, or nothing but -inf. No token is drawn then.
  bool finite = false;
  float logprob = 0.0f;  ///< of the token, log-softmax of the raw logits, if asked for
  std::span<const TokenLogprob> top_logprobs;  ///< best first; valid until the next call
};

/// Keeps arrays for `max_rows` rows, so that sampling takes memory from the arenas only.
class Sampler {
 public:
  /// Ids from num_ids on are padding of the vocabulary: they are never looked at. 0 < num_ids.
  Sampler(int64_t num_ids, int64_t max_rows);

  /// Samples row i of logits [R, V] f32 with rows[i] into results[i]; R <= max_rows, V >= num_ids.
  /// Logits are changed where penalties and biases apply. A dry run counts memory. Errors: those of
  /// the kernels.
  Status sample(Exec& ex,
                const View& logits,
                std::span<const SampleRow> rows,
                std::span<SampleResult> results);

  /// True if the largest logit of each row is all that the rows ask for.
  static bool only_largest(std::span<const SampleRow> rows);

  /// As a row that needs all the memory a row can need; for dry runs.
  static SampleRow largest_row();

 private:
  struct Features {
    bool altered = false;   // some row has penalties, a bias or banned tokens
    bool drawn = false;     // some row is not greedy
    bool logprobs = false;  // some row wants them
  };

  static Features look_at(std::span<const SampleRow> rows);
  Status keep_raw(Exec& ex, const View& logits, View& raw) const;
  Status apply_penalties(Exec& ex, const View& logits, std::span<const SampleRow> rows);
  Status draw(Exec& ex, const View& logits, std::span<const SampleRow> rows);
  void add_logprobs(Exec& ex,
                    const View& raw,
                    std::span<const SampleRow> rows,
                    std::span<SampleResult> results);

  int64_t num_ids_;
  // One number for each row of the step.
  std::vector<int32_t> ids_;
  std::vector<int32_t> bad_raw_;
  std::vector<int32_t> bad_;
  std::vector<int32_t> drawn_ids_;
  std::vector<float> temperature_;
  std::vector<int32_t> top_k_;
  std::vector<float> top_p_;
  std::vector<float> min_p_;
  std::vector<float> uniform_;
  std::vector<float> presence_;
  std::vector<float> frequency_;
  std::vector<float> repetition_;
  // Lists of the penalty kernel, all rows one after the other.
  std::vector<int32_t> token_offsets_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> counts_;
  std::vector<int32_t> bias_offsets_;
  std::vector<int32_t> bias_tokens_;
  std::vector<float> bias_values_;
  std::vector<TokenLogprob> top_;  // [max_rows, kMaxTopLogprobs]
};

}  // namespace fathom
