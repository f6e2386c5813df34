// The expert GEMM that gathers its rows through sorted slots and scatters its results: no permuted
// copy of the activations is made.
#pragma once

#include <array>

#include "fathom/kernels/core/variants.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// One product of a MoE layer over slots sorted by align_experts.
///
///   for every slot v = sorted_ids[j], j < num_padded, v < R, e = block_expert[j / block]:
///     y[v,:] = (x[v / top_k,:] . w[e]^T) * weights[v]
///
/// The first product of a layer has top_k = K and x[T,J], one row a token; the second has top_k = 1
/// and x[R,J], one row a slot, and may carry the router weights. Slots in blocks of expert -1 give
/// rows of zeros. weights: a view of R floats, or left out (an empty view): 1.
/// Products are those of the grouped GEMM of the format, bit for bit (then the weight is multiplied
/// in float32, before the one rounding to y); rows are independent.
/// Errors: InvalidArgument if block or top_k < 1, num_padded exceeds the buffers, an expert or a
/// slot is out of range, or weights has another length than R. Source: reference name
/// fused_moe_kernel (Triton), without its fused activation quantisation.
struct SortedMoeGemm {
  static constexpr KernelInfo kInfo{
      .name = "sorted_moe_gemm",
      .reference_names = {"fused_moe_kernel"},
      .signature =
          "x[T,J]:bf16|f32 w[E,N,J]:bf16|f32|fp8_block|fp8_block_ue8m0|nvfp4 "
          "sorted_ids[M]:i32 block_expert[B]:i32 num_padded[1]:i32 weights[U]:f32 -> "
          "y[R,N]:bf16|f32",
      .equation = "y[v] = weights[v] * x[v / top_k] . w[expert(v)]^T",
      .source = "sglang, fused_moe_kernel",
  };

  struct Args {
    View x;
    QuantView w;
    View sorted_ids, block_expert, num_padded;
    View weights{.rank = 1, .format = Format::kF32};  ///< no elements: all 1
    View y;
    int block = 1;
    int top_k = 1;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x,          &a.w.values, &a.sorted_ids, &a.block_expert,
                      &a.num_padded, &a.weights,  &a.y};
  }

  static Cost cost(const Args& a);

  /// Weights of the experts that have slots; in a dry run the expected number of them.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);

  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<SortedMoeGemm> sorted_moe_gemm_cpu;

}  // namespace fathom
