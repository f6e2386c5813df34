// The sampler: rows of logits to one token each.
//
//   raw logits -> penalties, bias -> mask -> finite? -> / temperature -> softmax (float32)
//              -> top-k, renormalise -> top-p, renormalise -> min-p -> one draw by inverse CDF
//
// Greedy rows take the argmax behind penalties, bias and mask. The random number of a row comes
// from a Philox stream named by (seed, stream) at the position of the token, so a token depends
// neither on its neighbours nor on the step in which it is computed.
//
// A step packs its rows (sample_batch.h), launches sample() where the logits are, and reads back
// eight bytes a row. A device that is not the host copies the block there first; before sample()
// changes them it finds the best tokens of rows that ask for log-probabilities (logprobs.h), and
// copies back the raw logits of those for which that is not enough.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/runtime/sample/logprobs.h"
#include "fathom/runtime/sample/sample_batch.h"
#include "fathom/tensor/view.h"

namespace fathom {

/// Launches what the batch asks for on logits [R, V] f32, R = batch.num_rows(), V >= num_ids: at
/// most three kernels, on the device of `ex`. Logits are changed where penalties, biases and masks
/// apply.
///
///   ids[i] i32: the token of row i;   bad[i] i32: 1 if the row has none (SampleResult::finite)
///
/// A row is found unusable as well behind its penalties: what was NaN, +inf or nothing but -inf
/// still is. A graph that serves any batch is captured with `altered`, `masked` and `drawn` set:
/// rows that ask for nothing leave the kernels at once. Errors: those of the kernels.
Status sample(
    Exec& ex, const View& logits, const SampleBatch& batch, const View& ids, const View& bad);

/// The tokens of rows, from what sample() wrote.
void take_results(std::span<const int32_t> ids,
                  std::span<const int32_t> bad,
                  std::span<SampleResult> results);

/// Samples rows whose logits lie in host memory. Keeps arrays for `max_rows` rows, so that sampling
/// takes memory from the arenas only.
class Sampler {
 public:
  /// Ids from num_ids on are padding of the vocabulary: they are never looked at. 0 < num_ids.
  Sampler(int64_t num_ids, int64_t max_rows);

  /// Samples row i of logits [R, V] f32 with rows[i] into results[i]; R <= max_rows, V >= num_ids.
  /// Logits are changed where penalties, biases and masks apply. A dry run counts memory. Errors:
  /// those of the kernels.
  Status sample(Exec& ex,
                const View& logits,
                std::span<const SampleRow> rows,
                std::span<SampleResult> results);

  /// True if the largest logit of each row is all that the rows ask for.
  static bool only_largest(std::span<const SampleRow> rows);

  /// As a row that needs all the memory a row can need; for dry runs.
  static SampleRow largest_row();

 private:
  void make_room(const SampleRoom& needed);
  Status keep_raw(Exec& ex,
                  const View& logits,
                  const SampleBatch& batch,
                  std::span<const SampleRow> rows);

  int64_t num_ids_;
  SampleRoom room_;
  std::vector<std::byte> block_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> bad_;
  std::vector<const float*> raw_;  // of rows that ask for log-probabilities
  Logprobs logprobs_;
};

}  // namespace fathom
