// One draw from a filtered distribution, by inverse CDF. The random number comes in as an operand,
// so a draw is a function of its inputs: the caller makes `uniform` from (seed, request, position).
//
//   kept = the set of the filter;   z = mass of kept
//   id   = the first v of kept, ascending, whose running mass exceeds uniform * z
//
// In all kernels here: probabilities need not sum to 1; NaN and negative values count as 0; running
// sums are in float64 and in the order of v; a token of probability 0 is never drawn, unless the
// row has no mass, which gives id 0. Rounding overshoot falls back to the last kept token.
// indices[b], if given, is the row of probs that output b is drawn from; parameters and uniform
// belong to the output.
#pragma once

#include <array>

#include "fathom/kernels/core/variants.h"

namespace fathom {

/// Draws from the tokens that are not too unlikely.
///
///   kept = { v : p[v] >= min_p * max p }
///
/// min_p = 0 keeps all. Errors: InvalidArgument for an index outside [0, T), uniform outside [0,
/// 1), min_p outside [0, 1]. Source: Nguyen et al., arXiv 2407.01082; reference name
/// min_p_sampling_from_probs.
struct SampleMinP {
  static constexpr KernelInfo kInfo{
      .name = "sample_min_p",
      .reference_names = {"min_p_sampling_from_probs"},
      .signature = "probs[T,V]:f32 min_p[T]:f32 uniform[T]:f32 indices?[T]:i32 -> ids[T]:i32",
      .limits = "V>=1",
      .equation = "id ~ p restricted to p >= min_p * max(p)",
      .source = "arXiv 2407.01082",
  };

  struct Args {
    View probs, min_p, uniform, indices{}, ids;
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
/// k >= V and top_p >= 1 keep all; k = 1 is greedy up to ties, which are drawn among. Thresholds
/// are those of renorm_top_k and renorm_top_p: tokens equal to the threshold are all kept. Errors:
/// InvalidArgument for an index outside [0, T), uniform outside [0, 1), k < 1, top_p <= 0. Source:
/// Holtzman et al., arXiv 1904.09751; reference name top_k_top_p_sampling_from_probs.
struct SampleTopKTopP {
  static constexpr KernelInfo kInfo{
      .name = "sample_top_k_top_p",
      .reference_names = {"top_k_top_p_sampling_from_probs"},
      .signature =
          "probs[T,V]:f32 k[T]:i32 top_p[T]:f32 uniform[T]:f32 indices?[T]:i32 -> "
          "ids[T]:i32",
      .limits = "V>=1",
      .equation = "id ~ p restricted to the k largest and to the top mass top_p",
      .source = "arXiv 1904.09751",
  };

  struct Args {
    View probs, k, top_p, uniform, indices{}, ids;
    FilterOrder order = FilterOrder::kTopKFirst;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.probs, &a.k, &a.top_p, &a.uniform, &a.indices, &a.ids};
  }

  static Cost cost(const Args& a) { return {.flops = 4.0 * static_cast<double>(a.probs.numel())}; }

  static Status check(const Args& a);
};

extern const VariantTable<SampleMinP> sample_min_p_cpu;
extern const VariantTable<SampleTopKTopP> sample_top_k_top_p_cpu;

}  // namespace fathom
