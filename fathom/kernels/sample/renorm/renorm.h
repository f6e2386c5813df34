// From logits to the distribution that is drawn from: softmax at a temperature, then filters that
// keep the largest probabilities and scale them to sum 1. Filters are applied one after the other
// (top-k, then top-p, then min-p in sample/draw).
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Softmax with a temperature per row.
///
///   probs[t,v] = exp((logits[t,v] - m) / temperature[t]) / sum,   m = the largest logit of the row
///
/// temperature 0 gives the one-hot row of the argmax (lowest index), its limit. Sums in float64.
/// NaN counts as -inf; a row without a finite or larger logit is one-hot at its argmax, so that
/// what is drawn is always a token (sample/argmax reports such rows). probs may be the memory of
/// logits. Errors: InvalidArgument for a temperature that is negative or not finite.
struct SoftmaxTemperature {
  static constexpr KernelInfo kInfo{
      .name = "softmax_temperature",
      .signature = "logits[T,V]:f32 temperature[T]:f32 -> probs[T,V]:f32",
      .limits = "V>=1",
      .equation = "probs = softmax(logits / temperature)",
      .source = "deepseek-v3 sampling: softmax in float32 after the temperature",
      .flops = "4*T*V",
      .outside = "for callers of the kernel library: sample_from_logits does it all",
  };

  struct Args {
    View logits, temperature, probs;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.temperature, &a.probs};
  }

  static Cost cost(const Args& a) { return {.flops = 4.0 * static_cast<double>(a.logits.numel())}; }

  static Status check(const Args& a);
};

/// Keeps the k largest probabilities of each row.
///
///   th = k-th largest value of the row;   y[v] = p[v] >= th ? p[v] / max(sum of those, 1e-8) : 0
///
/// Values equal to th are all kept. k >= V copies the row as it is (it is not scaled). k is one
/// number a row, or without the view k_all for all rows. NaN and negative values count as 0. Sums
/// in float64. y may be the memory of probs. Errors: InvalidArgument for k < 1. Source: FlashInfer,
/// top_k_renorm_probs; reference name top_k_renorm_prob.
struct RenormTopK {
  static constexpr KernelInfo kInfo{
      .name = "renorm_top_k",
      .reference_names = {"top_k_renorm_prob", "top_k_renorm_probs"},
      .signature = "probs[T,V]:f32 k?[T]:i32 -> y[T,V]:f32",
      .limits = "V>=1",
      .equation = "y = p / sum over the k largest, 0 elsewhere",
      .source = "FlashInfer, top_k_renorm_probs",
      .flops = "2*T*V",
      .outside = "for callers of the kernel library: sample_from_logits does it all",
  };

  struct Args {
    View probs, k{}, y;
    int32_t k_all = INT32_MAX;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.probs, &a.k, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = 2.0 * static_cast<double>(a.probs.numel())}; }

  static Status check(const Args& a);

  /// Candidates of a row, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

/// Keeps the smallest set of largest probabilities whose mass reaches p.
///
///   th = largest threshold with sum over { v : probs[v] >= th } of probs[v] >= p
///   y[v] = probs[v] >= th ? probs[v] / sum of those : 0
///
/// Values equal to th are all kept; the token that crosses p is kept. p >= 1, or above the mass of
/// the row, keeps every positive value and scales by the sum. p is one number a row, or without the
/// view p_all for all rows. NaN and negative values count as 0. Sums in float64. y may be the
/// memory of probs. Errors: InvalidArgument for p that is not positive. Source: Holtzman et al.,
/// arXiv 1904.09751; reference name top_p_renorm_prob.
struct RenormTopP {
  static constexpr KernelInfo kInfo{
      .name = "renorm_top_p",
      .reference_names = {"top_p_renorm_prob", "top_p_renorm_probs"},
      .signature = "probs[T,V]:f32 p?[T]:f32 -> y[T,V]:f32",
      .limits = "V>=1",
      .equation = "y = p / sum over the smallest set of mass >= p, 0 elsewhere",
      .source = "arXiv 1904.09751",
      .flops = "2*T*V",
      .outside = "for callers of the kernel library: sample_from_logits does it all",
  };

  struct Args {
    View probs, p{}, y;
    float p_all = 1.0f;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.probs, &a.p, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = 2.0 * static_cast<double>(a.probs.numel())}; }

  static Status check(const Args& a);

  /// Candidates of a row, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<SoftmaxTemperature> softmax_temperature_cpu;
extern const VariantTable<SoftmaxTemperature> softmax_temperature_cuda;
extern const VariantTable<RenormTopK> renorm_top_k_cpu;
extern const VariantTable<RenormTopK> renorm_top_k_cuda;
extern const VariantTable<RenormTopP> renorm_top_p_cpu;
extern const VariantTable<RenormTopP> renorm_top_p_cuda;

}  // namespace fathom
