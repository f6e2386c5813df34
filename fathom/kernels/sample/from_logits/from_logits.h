// From a row of logits to its next token in one call. What softmax_temperature, renorm_top_k,
// renorm_top_p and sample_min_p do one after the other, without distributions in memory between
// them; rows differ in what they ask for, and pay for what they ask.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Draws one token of each row.
///
///   p    = softmax(logits[t] / temperature[t])
///   K    = the top_k[t] most probable tokens, and those equal to the last of them
///   P    = the smallest set of most probable tokens of K with at least top_p[t] of its mass
///   kept = { v in P : p[v] >= min_p[t] * max p }
///   ids[t] = the first v of kept, ascending, whose running mass exceeds uniform[t] * (their mass)
///   bad[t] = 1 if the row holds NaN or +inf, or nothing but -inf; else 0
///
/// temperature 0 takes the largest logit, lowest id on ties (and so does a row whose largest logit
/// is infinite); top_k >= V, top_p >= 1 and min_p 0 filter nothing. NaN counts as -inf. Ids are in
/// [0, V) whatever the bits. On the CPU tokens are bit for bit those of the four kernels in that
/// order. Probabilities have float32 precision, so tokens whose probabilities differ by less than
/// 2^-20 of themselves may count as equal; sums are in float64 or exact in 64-bit integers of
/// 2^-42 of the largest probability, and depend on nothing but the row.
///
/// Errors: InvalidArgument for a temperature that is negative or not finite, top_k < 1, top_p <= 0,
/// min_p outside [0, 1], uniform outside [0, 1). The host cannot see parameters that lie on a GPU:
/// there a wrong one gives some token. Source: FlashInfer, top_k_top_p_sampling_from_logits; arXiv
/// 1904.09751 (top-p), 2407.01082 (min-p).
struct SampleFromLogits {
  static constexpr KernelInfo kInfo{
      .name = "sample_from_logits",
      .signature =
          "logits[T,V]:f32 temperature[T]:f32 top_k[T]:i32 top_p[T]:f32 min_p[T]:f32 "
          "uniform[T]:f32 -> ids[T]:i32 bad[T]:i32",
      .limits = "V>=1",
      .equation = "id ~ softmax(logits / temperature) restricted to top-k, then top-p, then min-p",
      .source = "FlashInfer, top_k_top_p_sampling_from_logits; arXiv 2407.01082",
      .flops = "4*T*V",
  };

  struct Args {
    View logits, temperature, top_k, top_p, min_p, uniform, ids, bad;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.temperature, &a.top_k, &a.top_p,
                      &a.min_p,  &a.uniform,     &a.ids,   &a.bad};
  }

  static Cost cost(const Args& a) { return {.flops = 4.0 * static_cast<double>(a.logits.numel())}; }

  static Status check(const Args& a);

  /// The distribution of a row and candidates of it, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<SampleFromLogits> sample_from_logits_cpu;
extern const VariantTable<SampleFromLogits> sample_from_logits_cuda;

}  // namespace fathom
