// Rows to expert order and back: the gather before the experts, the weighted sum after them.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Gathers rows.
///
///   y[r,:] = x[src_row[r],:];   zeros where src_row[r] is -1
///
/// Exact: all bytes of a row are copied, whatever its width. x and y have one format and must not
/// overlap; rows may be strided and may be taken more than once.
/// Errors: InvalidArgument for an index outside [-1, T), or differing formats.
/// Source: reference name shuffle_rows.
struct PermuteRows {
  static constexpr KernelInfo kInfo{
      .name = "permute_rows",
      .reference_names = {"shuffle_rows"},
      .signature = "x[T,D]:bf16|f32|f16|e4m3|u8 src_row[R]:i32 -> y[R,D]:bf16|f32|f16|e4m3|u8",
      .equation = "y[r] = x[src_row[r]]",
      .source = "sgl-kernel, shuffle_rows",
      .flops = "0",
  };

  struct Args {
    View x, src_row, y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.src_row, &a.y}; }

  static Cost cost(const Args&) { return {}; }

  /// Distinct rows of x are read once; without looking at the indices that is at most all of them,
  /// and at most one a row of y.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

/// Brings expert outputs back to their tokens.
///
///   y[t,:] = add[t,:] + sum_k weights[t,k] * x[dest[t,k],:]
///
/// Summed in float32 in the order add, k = 0, 1, ...; rounded once. Slots with dest -1 are left
/// out. weights absent: all 1; the reference has them in the format of y. add absent: 0 (it is the
/// shared expert's output in a DeepSeek layer). y may be the memory of add. Rows may be strided.
/// x, weights, add and y may differ in format. NaN and infinity reach their own columns of their
/// own token; a weight of 0 does not stop them.
/// Errors: InvalidArgument for dest outside [-1, R).
/// Source: DeepSeek-V3, arXiv 2412.19437, eq. 12; reference name apply_shuffle_mul_sum.
struct UnpermuteWeightedSum {
  static constexpr KernelInfo kInfo{
      .name = "unpermute_weighted_sum",
      .reference_names = {"apply_shuffle_mul_sum"},
      .signature =
          "x[R,D]:bf16|f32|f16 dest[T,K]:i32 weights?[T,K]:f32|bf16|f16 "
          "add?[T,D]:bf16|f32|f16 -> y[T,D]:bf16|f32|f16",
      .equation = "y = add + sum_k weights[k] * x[dest[k]]",
      .source = "arXiv 2412.19437, eq. 12",
      .flops = "2*T*K*D",
  };

  struct Args {
    View x, dest, weights{}, add{}, y;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.dest, &a.weights, &a.add, &a.y};
  }

  static Cost cost(const Args& a) {
    return {.flops = 2.0 * static_cast<double>(a.dest.numel()) * static_cast<double>(a.y.dim(1))};
  }

  static Status check(const Args& a);
};

/// Sums the K rows of each token that are already weighted.
///
///   y[t,:] = factor * sum_k x[t,k,:]
///
/// Summed in float32 in the order of k; one rounding. x and y may be strided in tokens, x in slots.
/// Source: reference name moe_sum_reduce (whose default factor 0 gives zeros; callers pass it).
struct TopkSum {
  static constexpr KernelInfo kInfo{
      .name = "topk_sum",
      .reference_names = {"moe_sum_reduce"},
      .signature = "x[T,K,D]:bf16|f32|f16 -> y[T,D]:bf16|f32|f16",
      .equation = "y = factor * sum_k x[k]",
      .source = "sgl-kernel, moe_sum_reduce",
      .flops = "T*K*D",
  };

  struct Args {
    View x, y;
    float factor = 1.0f;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = static_cast<double>(a.x.numel())}; }
};

extern const VariantTable<PermuteRows> permute_rows_cpu;
extern const VariantTable<PermuteRows> permute_rows_cuda;
extern const VariantTable<UnpermuteWeightedSum> unpermute_weighted_sum_cpu;
extern const VariantTable<UnpermuteWeightedSum> unpermute_weighted_sum_cuda;
extern const VariantTable<TopkSum> topk_sum_cpu;
extern const VariantTable<TopkSum> topk_sum_cuda;

}  // namespace fathom
