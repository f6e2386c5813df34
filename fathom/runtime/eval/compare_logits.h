// Two models on the same tokens: how far their predictions are apart.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/runtime/eval/compare_taps.h"
#include "fathom/runtime/forward_session.h"

namespace fathom {

/// Over all positions of all sequences. With p the distribution of the reference, q of the other:
struct LogitComparison {
  int64_t positions = 0;
  int64_t same_top1 = 0;  ///< first choices that agree; the smallest id where logits are equal
  double max_abs = 0;     ///< of logit differences
  double kl_sum = 0;      ///< sum of KL(p || q) = sum_i p_i ln(p_i / q_i), in nats
  double max_kl = 0;      ///< of one position
  double dot = 0;         ///< of all logits as one vector: reference . other, and their squares
  double reference_norm = 0;
  double other_norm = 0;

  double cosine() const;
  double mean_kl() const;
  double top1_share() const;
};

/// Logits of consecutive positions, the first of them `first`. Errors: Numerical, naming the first
/// position with a logit that is not finite.
Status check_finite_logits(const View& logits, int64_t first);

/// Adds one position: logits of the reference and of the other, equally many.
void add_position(std::span<const float> reference,
                  std::span<const float> other,
                  LogitComparison& out);

/// Runs both sessions over each sequence from its start and compares every position. Both have room
/// for the longest sequence and for all logits of a pass; they are reset. `progress(done, total)`
/// counts tokens. Errors: InvalidArgument for vocabularies of unequal size; Numerical for logits
/// that are not finite; those of the models. With `taps` the blocks of each layer too.
Result<LogitComparison> compare_logits(ForwardSession& reference,
                                       ForwardSession& other,
                                       const std::vector<std::vector<int32_t>>& sequences,
                                       const std::function<void(int64_t, int64_t)>& progress,
                                       TapComparison* taps = nullptr);

}  // namespace fathom
