// The expert GEMM that gathers its rows through sorted slots and scatters its results: its caller
// makes no permuted copy of the activations. (On a GPU it makes one of its own, in its workspace.)
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// Where a result goes.
enum class ResultRows : uint8_t {
  kSlots,   ///< y row v for slot v
  kSorted,  ///< y row j for sorted_ids[j]
};

/// One product of a MoE layer over slots sorted by align_experts.
///
///   for every slot v = sorted_ids[j], j < num_padded, v < slots, e = block_expert[j / block]:
///     y[row,:] = ((x[v / top_k,:] . w[e]^T) + bias[e,:]) * weights[v]
///
/// row is v, or j for kSorted; slots is R, or T * top_k for kSorted. The first product of a layer
/// has top_k = K and x[T,J], one row a token; the second has top_k = 1 and x[R,J], one row a slot,
/// and may carry the router weights. Slots in blocks of expert -1 give rows of zeros; rows of no
/// slot are not written. weights: a view of one float a slot, or left out (an empty view): 1.
///
/// Formats. Either w is any QuantView and x is unquantised. Or w is codes in e4m3 or i8, row-major,
/// with w_scales float32 [E, ceil(N/group_n), ceil(J/group_k)], where a group of 0 is the whole
/// axis; then x is codes of the same format with x_scales, or unquantised. x_scales are float32
/// [T or 1, ceil(J/group_k) or 1], in any strides:
///
///   the reference's           group_n, group_k   x_scales
///   block_shape (n, k)        n, k               [T, J/k]
///   per_channel_quant         1, 0               [T, 1]
///   tensor-wise               0, 0               [1, 1]
///   use_int8_w8a16            1, 0               none
///
/// With w as a QuantView the products are those of the grouped GEMM of its format, bit for bit.
/// With w as codes: codes become bf16 exactly; sums of 128 k are float32, in order; one fused
/// multiply-add with the product of the scales brings each into the accumulator. (The portable
/// variant multiplies each code by its scale first. On a GPU E4M3 codes in blocks of 128 x 128 are
/// multiplied as by Fp8GroupGemm.)
/// Bias is added, then the weight multiplied, in float32, before the one rounding to y. Rows are
/// independent; a NaN reaches its own row, or column of its own expert.
/// Errors: InvalidArgument if block or top_k < 1, num_padded exceeds the buffers, an expert or a
/// slot is out of range, or weights, scales or bias are misshapen. Source: reference name
/// fused_moe_kernel (Triton); its host entry quantises x first (group_quant_fp8 and relatives).
struct SortedMoeGemm {
  static constexpr KernelInfo kInfo{
      .name = "sorted_moe_gemm",
      .reference_names = {"fused_moe_kernel"},
      .signature =
          "x[T,J]:bf16|f32|f16|e4m3|i8 "
          "w[E,N,J]:bf16|f32|f16|fp8_block|fp8_block_ue8m0|nvfp4|e4m3|i8 "
          "sorted_ids[M]:i32 block_expert[B]:i32 num_padded[1]:i32 weights[U]:f32 "
          "w_scales?[E,Gn,Gk]:f32 bias?[E,N]:bf16|f32|f16 -> y[R,N]:bf16|f32|f16",
      .equation = "y[v] = (x[v / top_k] . w[expert(v)]^T + bias[expert(v)]) * weights[v]",
      .source = "sglang, fused_moe_kernel",
      .flops = "2*R*N*J",
  };

  struct Args {
    View x;
    QuantView w;
    View sorted_ids, block_expert, num_padded;
    View weights{.rank = 1, .format = Format::kF32};  ///< no elements: all 1
    View y;
    int block = 1;
    int top_k = 1;
    View x_scales = {};  ///< of x in codes
    View w_scales = {};  ///< of w in codes
    View bias = {};
    int64_t group_n = 0;
    int64_t group_k = 0;
    ResultRows rows = ResultRows::kSlots;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x,          &a.w.values, &a.sorted_ids, &a.block_expert,
                      &a.num_padded, &a.weights,  &a.w_scales,   &a.bias,
                      &a.y};
  }

  static Cost cost(const Args& a);

  /// Weights of the experts that have slots; in a dry run the expected number of them.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);

  static int64_t workspace(const Args& a, int num_threads);
};

/// Slots that y has rows for, or that the rows of x stand for.
int64_t num_slots(const SortedMoeGemm::Args& a);

extern const VariantTable<SortedMoeGemm> sorted_moe_gemm_cpu;
extern const VariantTable<SortedMoeGemm> sorted_moe_gemm_cuda;

}  // namespace fathom
