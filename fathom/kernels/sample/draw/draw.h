// One draw from a filtered distribution, by inverse CDF. A draw is a function of its operands: the
// random number is one of them, or comes from a seed.
//
//   kept = the set of the filter;   z = mass of kept
//   id   = the first v of kept, ascending, whose running mass exceeds u[b] * z
//
//   u[b] = uniform[b], in [0, 1), or without that operand the first uniform number of
//          Rng(seed, b, offset): one Philox stream for each output, offset counts the calls
//
// In all kernels here: probabilities need not sum to 1; NaN and negative values count as 0 unless
// nan_check asks for an error; running sums are in float64 and in an order that depends on the row
// alone, so every draw is what the references call deterministic; a token of probability 0 is never
// drawn, unless the row has no mass, which gives id 0. Rounding overshoot falls back to the last
// kept token.
//
// indices[b], if given, is the row of probs that output b is drawn from; outputs are as many as
// rows of probs. Parameters are a view, one for each output or row as is said there, or without it
// one scalar for all.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// What a NaN among the probabilities is.
enum class NanCheck : uint8_t {
  kZero,   ///< a probability of 0
  kError,  ///< InvalidArgument, naming row and token, before anything is drawn; costs a pass
};

/// Draws from the tokens that are not too unlikely.
///
///   kept = { v : p[v] >= min_p[b] * max p }
///
/// min_p = 0 keeps all. min_p belongs to the output b, as in the reference. Errors: InvalidArgument
/// for an index outside [0, T), uniform outside [0, 1), min_p outside [0, 1]. Source: Nguyen et
/// al., arXiv 2407.01082; reference name min_p_sampling_from_probs (min_p_all its number, check_nan
/// = nan_check, seed and offset those of its generator).
struct SampleMinP {
  static constexpr KernelInfo kInfo{
      .name = "sample_min_p",
      .reference_names = {"min_p_sampling_from_probs"},
      .signature = "probs[T,V]:f32 min_p?[T]:f32 uniform?[T]:f32 indices?[T]:i32 -> ids[T]:i32",
      .limits = "V>=1",
      .equation = "id ~ p restricted to p >= min_p * max(p)",
      .source = "arXiv 2407.01082",
      .flops = "3*T*V",
      .outside = "for callers of the kernel library: sample_from_logits does it all",
  };

  struct Args {
    View probs, min_p{}, uniform{}, indices{}, ids;
    float min_p_all = 0.0f;
    uint64_t seed = 0;
    uint64_t offset = 0;
    NanCheck nan_check = NanCheck::kZero;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.probs, &a.min_p, &a.uniform, &a.indices, &a.ids};
  }

  static Cost cost(const Args& a) { return {.flops = 3.0 * static_cast<double>(a.probs.numel())}; }

  static Status check(const Args& a);
};

/// Whether top-p sees the distribution that top-k left, or the original one.
enum class FilterOrder : uint8_t {
  kTopKFirst,  ///< top-k, renormalise, then top-p
  kJoint,      ///< both on the original row: #{u : p_u > p_v} < k and mass{u : p_u > p_v} < top_p
};

/// Draws after top-k and top-p.
///
/// k >= V and top_p >= 1 keep all, whatever the row sums to; k = 1 is greedy up to ties, which are
/// drawn among. Thresholds are those of renorm_top_k and renorm_top_p: tokens equal to the
/// threshold are all kept. k and top_p belong to the row of probs (to indices[b] where indices are
/// given), as in the reference. Errors: InvalidArgument for an index outside [0, T), uniform
/// outside [0, 1), k < 1, top_p <= 0. Source: Holtzman et al., arXiv 1904.09751; reference name
/// top_k_top_p_sampling_from_probs (k_all and top_p_all its numbers, order its filter_apply_order).
struct SampleTopKTopP {
  static constexpr KernelInfo kInfo{
      .name = "sample_top_k_top_p",
      .reference_names = {"top_k_top_p_sampling_from_probs"},
      .signature =
          "probs[T,V]:f32 k?[T]:i32 top_p?[T]:f32 uniform?[T]:f32 indices?[T]:i32 -> "
          "ids[T]:i32",
      .limits = "V>=1",
      .equation = "id ~ p restricted to the k largest and to the top mass top_p",
      .source = "arXiv 1904.09751",
      .flops = "4*T*V",
      .outside = "for callers of the kernel library: sample_from_logits does it all",
  };

  struct Args {
    View probs, k{}, top_p{}, uniform{}, indices{}, ids;
    FilterOrder order = FilterOrder::kTopKFirst;
    int32_t k_all = INT32_MAX;
    float top_p_all = 1.0f;
    uint64_t seed = 0;
    uint64_t offset = 0;
    NanCheck nan_check = NanCheck::kZero;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.probs, &a.k, &a.top_p, &a.uniform, &a.indices, &a.ids};
  }

  static Cost cost(const Args& a) { return {.flops = 4.0 * static_cast<double>(a.probs.numel())}; }

  static Status check(const Args& a);

  /// Candidates of a row, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<SampleMinP> sample_min_p_cpu;
extern const VariantTable<SampleMinP> sample_min_p_cuda;
extern const VariantTable<SampleTopKTopP> sample_top_k_top_p_cpu;
extern const VariantTable<SampleTopKTopP> sample_top_k_top_p_cuda;

}  // namespace fathom
