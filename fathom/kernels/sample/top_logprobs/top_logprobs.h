// The most probable tokens of rows of logits, for drafts as trees and for answers with
// log-probabilities.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// The K most probable tokens of each row, best first.
///
///   ids[t,0..K-1] = places of the K largest of logits[t,:]
///   logprobs[t,k] = logits[t,ids[t,k]] - log(sum over v of exp(logits[t,v]))
///   largest[t]    = logits[t,ids[t,0]]
///
/// Of equal logits the lower place comes first; -0 equals 0. With `largest` the log-probability of
/// any other token v is logits[t,v] - largest[t] + logprobs[t,0]. A row that argmax calls bad (it
/// holds NaN or +inf, or nothing but -inf) has -1 for ids, and NaN else. Sums in float64; variants
/// for a GPU add exponentials by fours in float32 before. Deterministic, rows are independent.
/// Source: the definition of log-softmax.
struct TopLogprobs {
  static constexpr KernelInfo kInfo{
      .name = "top_logprobs",
      .signature = "logits[T,V]:f32 -> ids[T,K]:i32 logprobs[T,K]:f32 largest[T]:f32",
      .limits = "K>=1, K<=V, V<=2147483647",
      .equation = "ids = the K largest, best first; logprobs = log-softmax of the whole row there",
      .flops = "4*T*V",
      .outside = "drafts as trees, and answers with log-probabilities on a GPU",
  };

  struct Args {
    View logits, ids, logprobs, largest;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.ids, &a.logprobs, &a.largest};
  }

  static Cost cost(const Args& a) { return {.flops = 4.0 * static_cast<double>(a.logits.numel())}; }
};

extern const VariantTable<TopLogprobs> top_logprobs_cpu;
extern const VariantTable<TopLogprobs> top_logprobs_cuda;

}  // namespace fathom
